"""Scaled columns, and artificial label noise."""

from typing import Any

import numpy as np

from bilevel.checks import as_number, check_count, check_generator, check_labels, check_matrix
from bilevel.words import shown


def standardize(reference: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return `(a − mean) / sd` by column for `reference` and all others, with the *reference's* moments.

    Pass the training set as the reference, so that the scale contains nothing of the validation set. sd has
    the divisor n. A column that is constant in the reference is only shifted.
    """
    arrays = _matrices(reference, others)
    mean, sd = arrays[0].mean(axis=0), arrays[0].std(axis=0)
    # The computed sd of a constant column may be a rounding error instead of zero.
    sd = np.where(np.ptp(arrays[0], axis=0) > 0, sd, np.ones_like(sd))
    return tuple((array - mean) / sd for array in arrays)


def unit_range(reference: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return `2 (a − min) / (max − min) − 1` by column, with the *reference's* range, as svm-scale does.

    Raise if a column is constant in the reference.
    """
    arrays = _matrices(reference, others)
    low, high = arrays[0].min(axis=0), arrays[0].max(axis=0)
    flat = np.flatnonzero(low == high)
    if flat.size:
        raise ValueError(
            f"column {flat[0]} is constant ({low[flat[0]]}) and cannot be scaled to [-1, 1]; drop it"
        )
    return tuple(2 * (array - low) / (high - low) - 1 for array in arrays)


def _matrices(reference: np.ndarray, others: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    names = ["reference", *(f"other array {i}" for i in range(len(others)))]
    arrays = [check_matrix(array, name) for name, array in zip(names, (reference, *others), strict=True)]
    columns = arrays[0].shape[1]
    for name, array in zip(names, arrays, strict=True):
        if array.shape[1] != columns:
            raise ValueError(
                f"{name} has {array.shape[1]} columns, but the reference has {columns}: give the same ones"
            )
    return arrays


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
