"""A level's update rule: a float is plain gradient descent, the paper's case; optax brings the others."""

import math
from typing import Any

import jax
import numpy as np
import optax
from jax.core import Tracer

PyTree = Any
Rule = optax.GradientTransformation


def as_rule(value: Any, level: str) -> Rule:
    """The optax transformation that `value` stands for, or an error that names the level and the value."""
    if isinstance(value, optax.GradientTransformation):
        return value
    check_positive(value, f"{level} step size", "or an optax transformation such as optax.adam(1e-3)")
    return optax.scale(-value)


def plain(**step_sizes: Any) -> dict[str, Any]:
    """The step sizes by name if each is a number, that is if every level is plain gradient descent; else none."""
    numbers = Tracer | int | float | np.number | np.ndarray | jax.Array
    return step_sizes if all(isinstance(value, numbers) for value in step_sizes.values()) else {}


def descend(rule: Rule, gradient: PyTree, rule_state: PyTree, point: PyTree) -> tuple[PyTree, PyTree]:
    """One step of `rule` from `point` along `gradient`: the new point and the rule's new state."""
    updates, rule_state = rule.update(gradient, rule_state, point)
    return optax.apply_updates(point, updates), rule_state


def check_positive(value: Any, name: str, alternative: str = "") -> None:
    """Refuses what is not a positive finite number; a traced value is let through, it has no value yet."""
    if isinstance(value, Tracer):
        return
    number = isinstance(value, int | float | np.number) or (
        isinstance(value, np.ndarray | jax.Array) and value.ndim == 0
    )
    if not number or isinstance(value, bool) or not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"the {name} must be a positive number, not {value!r}: pass e.g. 1e-2 {alternative}".rstrip()
        )
