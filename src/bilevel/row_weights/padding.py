"""Zeros around the data, so that a few compiled programs serve tables of all shapes.

JAX compiles for every shape anew, which takes seconds, while a fit takes a fraction of one: a cross-validation, whose
folds differ by a row, would compile for each. Padding has weight zero, and changes results by rounding alone.
"""

import numpy as np


def bucket(count: int, least: int) -> int:
    """The next size up: eight to an octave, so that at most an eighth is padding; none below `least`."""
    unit = max(least, 2 ** (max(count - 1, 1).bit_length() - 4))
    return -(-count // unit) * unit if count > least else least


def padded(array: np.ndarray, *sizes: int) -> np.ndarray:
    """With zeros at the ends of its first axes up to `sizes`."""
    room = [size - length for size, length in zip(sizes, array.shape, strict=False)]
    return np.pad(array, [(0, room[axis] if axis < len(room) else 0) for axis in range(array.ndim)])
