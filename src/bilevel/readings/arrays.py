"""Arrays that a function reads, and digests of their numbers."""

import array
import hashlib
import mmap
from typing import Any

import jax
import numpy as np

BUFFERS = (bytearray, memoryview, array.array, mmap.mmap)


def as_array(value: Any) -> Any:
    """Return an object that holds numbers as an array, or None for any other object."""
    if isinstance(value, np.ndarray | jax.Array):
        return value
    if isinstance(value, BUFFERS):
        return np.frombuffer(bytes(value), np.uint8)
    if hasattr(type(value), "__array__"):
        try:
            return np.asarray(value)
        except Exception:  # on a device that NumPy cannot read, for instance
            return None
    return None


def array_token(value: Any) -> Any:
    """Return a digest of an array whose numbers can change, and of its mask."""
    array = as_array(value)
    if array is None:
        return None
    masks = [np.ma.getmaskarray(array)] if isinstance(array, np.ma.MaskedArray) else []
    return [(each.dtype.str, each.shape, digest(each)) for each in (*masks, np.asarray(array))]


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).view(np.uint8).data).hexdigest()
