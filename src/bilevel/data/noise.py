"""Artificial label noise."""

from typing import Any

import numpy as np

from bilevel.checks import as_number, check_count, check_generator, check_labels
from bilevel.words import shown


def corrupt_labels(
    labels: np.ndarray, probability: float, *, classes: int, seed: int | np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return `(noisy, wrong)`: each label becomes, with the given probability, a random *wrong* label.

    noisy = (label + shift) mod classes where wrong, shift uniform on 1..classes−1. `wrong` is the boolean
    mask of the labels that changed.
    """
    share = check_share(probability)
    if check_count(classes, "classes", least=0) < 2:
        raise ValueError(f"classes={classes}: a wrong label needs at least two classes")
    check_labels(labels, "labels", classes)
    labels, rng = np.asarray(labels), check_generator(seed)
    wrong = rng.random(labels.shape) < share
    shift = rng.integers(1, classes, size=labels.shape)
    noisy = np.where(wrong, (labels + shift) % classes, labels).astype(labels.dtype)
    return noisy, wrong


def check_share(probability: Any) -> float:
    """Return the probability, or raise if it is not between 0 and 1."""
    share = as_number(probability)
    if share is None or not 0 <= share <= 1:
        fix = "pass the share of labels to replace"
        raise ValueError(f"probability={shown(probability)} is not between 0 and 1: {fix}")
    return share
