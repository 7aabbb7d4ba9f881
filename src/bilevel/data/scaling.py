"""Scaling of columns."""

import numpy as np

from bilevel.checks import check_matrix


def standardize(reference: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return `(a − mean) / sd` by column for `reference` and all others, with the *reference's* moments.

    Pass the training set as the reference, so that the scale contains nothing of the validation set. sd has
    the divisor n. A column that is constant in the reference is only shifted.
    """
    arrays = _matrices(reference, others)
    reference = arrays[0]
    mean, sd = reference.mean(axis=0), reference.std(axis=0)
    # The computed sd of a constant column may be a rounding error instead of zero.
    sd = np.where(np.ptp(reference, axis=0) > 0, sd, np.ones_like(sd))
    return tuple((array - mean) / sd for array in arrays)


def unit_range(reference: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return `2 (a − min) / (max − min) − 1` by column, with the *reference's* range, as svm-scale does.

    Raise if a column is constant in the reference.
    """
    arrays = _matrices(reference, others)
    reference = arrays[0]
    low, high = reference.min(axis=0), reference.max(axis=0)
    flat = np.flatnonzero(low == high)
    if flat.size:
        raise ValueError(
            f"column {flat[0]} is constant ({low[flat[0]]}) and cannot be scaled to [-1, 1]; drop it"
        )
    return tuple(2 * (array - low) / (high - low) - 1 for array in arrays)


def _matrices(reference: np.ndarray, others: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    given = {"reference": reference} | {f"other array {i}": array for i, array in enumerate(others)}
    arrays = [check_matrix(array, name) for name, array in given.items()]
    for name, array in zip(given, arrays, strict=True):
        if array.shape[1] != arrays[0].shape[1]:
            raise ValueError(
                f"{name} has {array.shape[1]} columns, but the reference has {arrays[0].shape[1]}: give the same ones"
            )
    return arrays
