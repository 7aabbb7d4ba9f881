"""Putting columns on a common scale."""

import numpy as np

from bilevel.checks import check_matrix


def standardize(reference: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """`(a − mean) / sd` column by column for `reference` and every other array, with the *reference's* moments.

    Name the training set as the reference, so that nothing of the validation set leaks into the scale. sd is
    the population's (divisor n). A column that is constant in the reference is only shifted, to zero there.
    """
    arrays = _matrices(reference, others)
    reference = arrays[0]
    mean, sd = reference.mean(axis=0), reference.std(axis=0)
    # A constant column's computed sd may be a rounding error instead of zero; dividing by it would blow it up.
    sd = np.where(np.ptp(reference, axis=0) > 0, sd, np.ones_like(sd))
    return tuple((array - mean) / sd for array in arrays)


def unit_range(reference: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """`2 (a − min) / (max − min) − 1` column by column, with the *reference's* range: svm-scale's rule.

    A column that is constant in the reference has no range and is an error.
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
