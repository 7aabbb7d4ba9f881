"""Numeric columns of a trace: their order and their titles."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevel.loop.trace import STEP, Columns
from bilevel.words import one_line

NAMES = {
    "outer_value": "outer value",
    "hypergradient_norm": "hypergradient",
    "stationarity": "stationarity",
    "adjoint_residual": "adjoint residual",
}  # shown first, and better the smaller they are


def title(name: str) -> str:
    return NAMES.get(name) or one_line(name)


def numbers_in(trace: Columns, rank: int = 1) -> dict[str, np.ndarray]:
    """Return the columns with one number per step, usual ones first; in a sweep `rank` is 2."""
    found = {
        name: column
        for name, column in trace.items()
        if name != STEP and isinstance(column, np.ndarray) and column.ndim == rank and is_real(column.dtype)
    }
    return {name: found[name] for name in (*(name for name in NAMES if name in found), *found)}


def is_real(dtype: Any) -> bool:
    """Return whether a dtype holds real numbers. It may be unknown to NumPy, such as bfloat16."""
    return any(jnp.issubdtype(dtype, kind) for kind in (np.floating, np.integer, np.bool_))
