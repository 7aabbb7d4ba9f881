"""Wrong labels, on purpose."""

import numpy as np


def corrupt_labels(
    labels: np.ndarray, probability: float, *, classes: int, seed: int | np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`(noisy, wrong)`: each label is replaced with the given probability by a uniformly drawn *wrong* label.

    noisy = (label + shift) mod classes where wrong, shift uniform on 1..classes−1; `wrong` is the boolean mask
    of the labels that were replaced, and these are exactly the labels that changed.
    """
    labels = np.asarray(labels)
    if not 0 <= probability <= 1:
        raise ValueError(f"probability={probability} is not between 0 and 1")
    if classes < 2:
        raise ValueError(f"classes={classes}: a wrong label needs at least two classes")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels of type {labels.dtype}: expected integers 0..{classes - 1}")
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"labels run from {labels.min()} to {labels.max()}, expected 0..{classes - 1}")
    rng = np.random.default_rng(seed)
    wrong = rng.random(labels.shape) < probability
    shift = rng.integers(1, classes, size=labels.shape)
    noisy = np.where(wrong, (labels + shift) % classes, labels).astype(labels.dtype)
    return noisy, wrong
