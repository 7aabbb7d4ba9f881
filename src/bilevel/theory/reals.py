"""Checked numbers for certificates: float64 arrays or scalars, or an error with the value and the fix."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bilevel.words import shown

Floats = np.ndarray | float
"""A computed value: a float64 array, or a scalar if all inputs were scalars."""

Real = Any
"""An accepted value: numbers and nested sequences or arrays of numbers. `number` checks it."""

LARGEST_KAPPA = 1e13
MOST_LISTED = 10**7
MEANINGS = {
    "gap": "it is Φ(x₀) − inf Φ",
    "y_error": "it is the distance of y₀ from y*(x₀)",
    "v_error": "it is the distance of v₀ from v*(x₀)",
    "alpha": "it is a step size",
    "eta": "it is a step size",
    "beta": "it is the outer step size",
    "R_y": "it is a radius around y*(x)",
    "eps": "it is the target for the mean of ‖∇Φ‖²",
    "theta": "it is the parameter of Young's inequality",
    "c_y": "the warm-up brings ‖y₀ − y*₀‖ down to c_y·mu",
    "slack": "it is what a larger step may cost, as a share of the lowest bound",
}


def number(value: Real, name: str) -> Floats:
    """Return `value` as float64: arrays remain arrays, and anything zero-dimensional becomes a scalar."""
    try:
        # A Python integer may exceed 64 bits (iteration counts do, at large κ). NumPy would reject it.
        if isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if np.any(np.ma.getmask(value)) or isinstance(value, str | bytes | dict | set | Iterator):
            raise TypeError
        result = np.asarray(value)
        if result.dtype == object and all(type(entry) is int for entry in result.flat):
            result = result.astype(np.float64)
        if result.dtype.kind not in "iuf":
            raise TypeError
        with np.errstate(over="ignore"):  # a long double may overflow to infinity: raised below
            result = result.astype(np.float64)
    except Exception:  # any error of NumPy or of a deleted array
        raise TypeError(
            f"{name} must be a real number or an array of them, got {shown(value)}: pass e.g. {name}=1.0"
        ) from None
    _check(result, ~np.isfinite(result), f"{name} must be finite")
    return result[()]


def nonnegative(value: Real, name: str, meaning: str | None = None) -> Floats:
    """Return `value` as a number ≥ 0. The error explains its `meaning`, by default from `MEANINGS`."""
    result = number(value, name)
    return _check(result, result < 0, f"{name} must be at least 0", meaning or MEANINGS[name])


def positive(value: Real, name: str, meaning: str | None = None) -> Floats:
    """Return `value` as a number > 0. The error explains its `meaning`, by default from `MEANINGS`."""
    result = number(value, name)
    return _check(result, result <= 0, f"{name} must be positive", meaning or MEANINGS[name])


def fraction(value: Real, name: str) -> Floats:
    """Return a safety factor in (0, 1] that scales a step size down."""
    result = positive(value, name, "it scales the largest admissible step size; use 1 for the largest")
    reason = "the certificate does not cover a larger outer step"
    return _check(result, result > 1, f"{name} must be at most 1", reason)


def step_count(steps: Real) -> Floats:
    """Return a number of iterations K ≥ 1 (whole, but as float64 for arithmetic)."""
    result = positive(steps, "steps", "a bound averages over K ≥ 1 iterations")
    return _check(result, result != np.floor(result), "steps must be a whole number of iterations")


def listed_steps(steps: Real) -> int:
    """Return a number of iterations for which every value is stored."""
    result = scalar(step_count(steps), "steps")
    if result > MOST_LISTED:
        raise ValueError(
            f"steps must be at most {MOST_LISTED:,}, because every value is stored, got {result:g}"
        )
    return int(result)


def short_step(value: Real | None, name: str, L: Floats) -> Floats:
    """Return a step size of at most 1/L, which is also the default."""
    result = 1 / L if value is None else positive(value, name)
    if np.any(result * L > 1 + 1e-12):
        raise ValueError(f"{name} must be at most 1/L, got {name}·L = {np.max(result * L):g}; reduce it")
    return result


def scalar(value: Floats, name: str) -> float:
    """Return a single number. Raise for an array, which other certificates take as well."""
    if np.ndim(value):
        raise TypeError(f"{name} must be one number, got {shown(value)}: take one case at a time")
    return float(value)


def check_kappa(kappa: Floats) -> None:
    """Raise if float64 has too few digits between 1 − 1/κ and one."""
    if np.any(np.greater(kappa, LARGEST_KAPPA)):
        raise ValueError(
            f"the condition number is {np.max(kappa):g}, and beyond {LARGEST_KAPPA:g} float64 cannot tell an inner "
            "step from none: add a ridge term to the inner problem"
        )


def check_shapes(**values: Any) -> None:
    """Raise if the values do not broadcast against each other."""
    shapes = {name: np.shape(value) for name, value in values.items() if np.ndim(value)}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        named = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(
            f"numbers must broadcast against each other, got shapes {named}; add axes of length one, as in a[:, None]"
        ) from None


def _check(values: Floats, bad: Any, rule: str, reason: str = "") -> Floats:
    """Return the values, or raise with the first bad one."""
    if np.any(bad):
        first = float(np.atleast_1d(values)[np.atleast_1d(bad)][0])
        raise ValueError(f"{rule}, got {first}" + (f": {reason}" if reason else ""))
    return values
