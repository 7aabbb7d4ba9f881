"""The numbers that certificates take: float64 arrays or scalars, or an error that names the value and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bilevel.words import shown

Floats = np.ndarray | float
"""What certificates compute: a float64 array, or a scalar where everything that went in was one."""

Real = Any
"""What they accept: numbers and nested sequences or arrays of numbers. `number` checks, and says what is wrong."""

LARGEST_KAPPA = 1e13
MOST_LISTED = 10**7


def number(value: Real, name: str) -> Floats:
    """`value` as float64: an array stays an array, anything zero-dimensional becomes a scalar."""
    try:
        # A Python integer may exceed 64 bits (iteration counts do, at large κ); NumPy alone would refuse it.
        if isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if np.any(np.ma.getmask(value)):
            raise TypeError
        if isinstance(value, str | bytes | dict | set | Iterator):
            raise TypeError
        result = np.asarray(value)
        if result.dtype == object and all(type(entry) is int for entry in result.flat):
            result = result.astype(np.float64)
        if result.dtype.kind not in "iuf":
            raise TypeError
        with np.errstate(
            over="ignore"
        ):  # a long double may be out of range: infinite, which is refused below
            result = result.astype(np.float64)
    except Exception:  # whatever NumPy or a deleted array has to say
        raise TypeError(
            f"{name} must be a real number or an array of them, got {shown(value)}: pass e.g. {name}=1.0"
        ) from None
    if not np.all(np.isfinite(result)):
        raise ValueError(f"{name} must be finite, got {_first(result, ~np.isfinite(result))}")
    return result[()]


def nonnegative(value: Real, name: str, meaning: str) -> Floats:
    result = number(value, name)
    if np.any(result < 0):
        raise ValueError(f"{name} must be at least 0, got {_first(result, result < 0)}: {meaning}")
    return result


def positive(value: Real, name: str, meaning: str) -> Floats:
    result = number(value, name)
    if np.any(result <= 0):
        raise ValueError(f"{name} must be positive, got {_first(result, result <= 0)}: {meaning}")
    return result


def fraction(value: Real, name: str) -> Floats:
    """A safety factor in (0, 1] that scales a step size down."""
    result = positive(value, name, "it scales the largest admissible step size; use 1 for the largest")
    if np.any(result > 1):
        raise ValueError(
            f"{name} must be at most 1, got {_first(result, result > 1)}: "
            "a larger outer step than the certificate admits voids it"
        )
    return result


def horizon(steps: Real) -> Floats:
    """A number of iterations K ≥ 1 (whole, but returned as float64 for arithmetic)."""
    result = positive(steps, "steps", "a bound averages over K ≥ 1 iterations")
    if np.any(result != np.floor(result)):
        bad = _first(result, result != np.floor(result))
        raise ValueError(f"steps must be a whole number of iterations, got {bad}")
    return result


def listed(steps: Real) -> int:
    """A number of iterations of which every one is written down."""
    result = one(horizon(steps), "steps")
    if result > MOST_LISTED:
        raise ValueError(f"steps must be at most {MOST_LISTED:,} where every one is listed, got {result:g}")
    return int(result)


def short_step(value: Real | None, name: str, L: Floats) -> Floats:
    """A step size of at most 1/L, which is also the default."""
    result = 1 / L if value is None else positive(value, name, "it is a step size")
    if np.any(result * L > 1 + 1e-12):
        raise ValueError(f"{name} must be at most 1/L, got {name}·L = {np.max(result * L):g}; reduce it")
    return result


def one(value: Floats, name: str) -> float:
    """A single number, where other certificates take arrays as well."""
    if np.ndim(value):
        raise TypeError(f"{name} must be one number, got {shown(value)}: take one case at a time")
    return float(value)


def resolved(kappa: Floats) -> None:
    """Refuses condition numbers for which float64 has too few digits between 1 − 1/κ and one."""
    if np.any(np.greater(kappa, LARGEST_KAPPA)):
        raise ValueError(
            f"the condition number is {np.max(kappa):g}, and beyond {LARGEST_KAPPA:g} float64 cannot tell an inner "
            "step from none: add a ridge term to the inner problem"
        )


def together(**values: Any) -> None:
    """Refuses numbers whose shapes do not broadcast against each other."""
    shapes = {name: np.shape(value) for name, value in values.items() if np.ndim(value)}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(
            f"numbers must broadcast against each other, got shapes {listed}; add axes of length one, as in a[:, None]"
        ) from None


def _first(values: Floats, bad: Any) -> float:
    return float(np.atleast_1d(values)[np.atleast_1d(bad)][0])
