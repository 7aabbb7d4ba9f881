"""Input checks shared by the certificates: float64 out, and errors that name the value and the fix."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray | float
"""What certificates compute: a float64 array, or a scalar where everything that went in was one."""

Real = Any
"""What they accept: numbers and nested sequences or arrays of numbers. `number` checks, and says what is wrong."""


def number(name: str, value: Real) -> Array:
    """`value` as float64: an array stays an array, anything zero-dimensional becomes a scalar."""
    try:
        # A Python integer may exceed 64 bits (iteration counts do, at large κ); NumPy alone would refuse it.
        if isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        result = np.asarray(value)
        if result.dtype.kind not in "iuf":
            raise TypeError
        result = result.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a real number or an array of them, got {value!r}") from None
    if not np.all(np.isfinite(result)):
        raise ValueError(f"{name} must be finite, got {_first(result, ~np.isfinite(result))}")
    return result[()]


def nonnegative(name: str, value: Real, meaning: str) -> Array:
    result = number(name, value)
    if np.any(result < 0):
        raise ValueError(f"{name} must be at least 0, got {_first(result, result < 0)}: {meaning}")
    return result


def positive(name: str, value: Real, meaning: str) -> Array:
    result = number(name, value)
    if np.any(result <= 0):
        raise ValueError(f"{name} must be positive, got {_first(result, result <= 0)}: {meaning}")
    return result


def fraction(name: str, value: Real) -> Array:
    """A safety factor in (0, 1] that scales a step size down."""
    result = positive(name, value, "it scales the largest admissible step size; use 1 for the largest")
    if np.any(result > 1):
        raise ValueError(
            f"{name} must be at most 1, got {_first(result, result > 1)}: "
            "a larger outer step than the certificate admits voids it"
        )
    return result


def horizon(steps: Real) -> Array:
    """A number of iterations K ≥ 1 (whole, but returned as float64 for arithmetic)."""
    result = positive("steps", steps, "a bound averages over K ≥ 1 iterations")
    if np.any(result != np.floor(result)):
        bad = _first(result, result != np.floor(result))
        raise ValueError(f"steps must be a whole number of iterations, got {bad}")
    return result


def _first(values: Array, bad: Any) -> float:
    return float(np.atleast_1d(values)[np.atleast_1d(bad)][0])
