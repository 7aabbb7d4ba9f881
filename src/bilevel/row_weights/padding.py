"""Zero padding, so that a few compiled programs serve tables of all shapes.

JAX compiles for every shape, which takes seconds, and a fit takes less than one. A cross-validation with
folds of different sizes would compile for each. Padding has weight zero and changes results only by rounding.
"""

import numpy as np


def bucket(count: int, least: int) -> int:
    """Return the padded size of `count`, at least `least`. At most an eighth of it is padding."""
    unit = max(least, 2 ** (max(count - 1, 1).bit_length() - 4))
    return -(-count // unit) * unit if count > least else least


def padded(array: np.ndarray, *sizes: int) -> np.ndarray:
    """Pad the first axes with zeros up to `sizes`."""
    room = [size - length for size, length in zip(sizes, array.shape, strict=False)]
    return np.pad(array, [(0, room[axis] if axis < len(room) else 0) for axis in range(array.ndim)])
