"""What can be drawn: real numbers that are there."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def as_numbers(value: Any) -> np.ndarray | None:
    """As an array of floats; `None` for anything but real numbers."""
    if not isinstance(value, np.ndarray | jax.Array | np.generic | int | float) or np.ma.isMaskedArray(value):
        return None
    if isinstance(value, jax.Array) and (isinstance(value, Tracer) or value.is_deleted()):
        return None
    kind = value.dtype if isinstance(value, jax.Array) else np.asarray(value).dtype
    real = any(jnp.issubdtype(kind, each) for each in (np.floating, np.integer, np.bool_))
    return np.asarray(value, float) if real else None
