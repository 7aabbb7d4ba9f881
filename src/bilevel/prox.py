"""Proximal maps of inner penalties that are not smooth, for `bl.Problem(..., prox=...)`.

Each is a function `(x, z, step)` that returns argmin_y h(x, y) + ‖y − z‖²/(2·step). A strength is a function of x, so
that it can be learned, or a number; what it returns is one number, an array that broadcasts, or a tree like y. It must
not be negative (write `jnp.exp(x)` or a softplus): below zero it counts as zero, where nothing learns.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.types import PyTree

Prox = Callable[[PyTree, PyTree, Any], PyTree]
Strength = Callable[[PyTree], Any] | float


def l1(strength: Strength) -> Prox:
    """Of λ(x)‖y‖₁: every entry moves towards zero by step·λ, and those that are nearer become exactly zero."""
    strength = _function(strength, "strength")

    def prox(x: PyTree, z: PyTree, step: Any) -> PyTree:
        return _each(lambda a, t: _soft(a, t), z, _times(step, strength(x)))

    return prox


def elastic_net(l1: Strength, l2: Strength) -> Prox:
    """Of λ₁(x)‖y‖₁ + ½λ₂(x)‖y‖²."""
    first, second = _function(l1, "l1"), _function(l2, "l2")

    def prox(x: PyTree, z: PyTree, step: Any) -> PyTree:
        sparse = _each(lambda a, t: _soft(a, t), z, _times(step, first(x)))
        return _each(lambda a, t: a / (1 + t), sparse, _times(step, second(x)))

    return prox


def group_lasso(strength: Strength, groups: Any) -> Prox:
    """Of Σ_j λ_j(x)‖y_j‖₂ over groups j of entries of the array y: a group as a whole becomes exactly zero.

    Args:
        strength: λ, a function of x that returns one number, or one per group; or a number.
        groups: the group of each entry of y, whole numbers from 0 on, shaped like y.
    """
    return sparse_group_lasso(0.0, strength, groups)


def sparse_group_lasso(l1: Strength, strength: Strength, groups: Any) -> Prox:
    """Of λ₁(x)‖y‖₁ + Σ_j λ_j(x)‖y_j‖₂: groups become zero, and entries within the others.

    Args:
        l1: λ₁, of the entries.
        strength: λ, of the groups.
        groups: the group of each entry of y, whole numbers from 0 on, shaped like y.
    """
    first, second = _function(l1, "l1"), _function(strength, "strength")
    groups = _groups(groups)
    count = int(groups.max()) + 1

    def prox(x: PyTree, z: PyTree, step: Any) -> PyTree:
        if jnp.shape(z) != groups.shape:
            raise ValueError(
                f"groups has shape {groups.shape}, but y has {jnp.shape(z) or type(z).__name__}: pass one group for "
                "each entry of y, which must be a single array"
            )
        z = _each(lambda a, t: _soft(a, t), z, _times(step, first(x)))
        squares = jax.ops.segment_sum((z * z).ravel(), groups.ravel(), num_segments=count)
        threshold = jnp.broadcast_to(jnp.asarray(_times(step, second(x)), z.dtype), (count,))
        kept = squares > threshold**2
        size = jnp.sqrt(jnp.where(kept, squares, 1))  # no derivative of √0
        return z * jnp.where(kept, 1 - threshold / size, 0)[groups]

    return prox


def box(low: Strength, high: Strength) -> Prox:
    """Of the set low(x) ≤ y ≤ high(x), whose bounds may depend on x."""
    lower, upper = _function(low, "low"), _function(high, "high")

    def prox(x: PyTree, z: PyTree, step: Any) -> PyTree:
        return _each(lambda a, bound: jnp.minimum(a, bound), _each(jnp.maximum, z, lower(x)), upper(x))

    return prox


def _soft(a: jax.Array, threshold: jax.Array) -> jax.Array:
    return a - jnp.clip(a, -threshold, threshold)


def _function(value: Strength, name: str) -> Callable[[PyTree], Any]:
    if callable(value):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if np.isnan(number) or (number < 0 and name not in ("low", "high")):
        raise ValueError(f"{name} must be a function of x or a number that is not negative, not {value!r}")
    return lambda x: number


def _times(step: Any, strength: Any) -> Any:
    """step · strength, of which what is negative counts as zero: no penalty has a negative strength."""
    strength = jax.tree.map(lambda s: jnp.maximum(s, 0), strength)
    return jax.tree.map(
        lambda s: jnp.asarray(step, jnp.result_type(s)) * s if hasattr(s, "dtype") else step * s, strength
    )


def _each(function: Callable, z: PyTree, values: Any) -> PyTree:
    """`function` of every leaf of z and its value: from a tree like z, or the same for all of them."""
    if jax.tree.structure(values) != jax.tree.structure(z):
        values = jax.tree.map(lambda _: values, z)
    return jax.tree.map(lambda a, value: function(a, jnp.asarray(value, a.dtype)), z, values)


def _groups(groups: Any) -> np.ndarray:
    array = np.asarray(groups)
    if not array.size or not np.issubdtype(array.dtype, np.integer) or array.min() < 0:
        raise ValueError(
            f"groups must hold the number of a group, from 0 on, for each entry of y, not {groups!r}: pass e.g. "
            "np.array([0, 0, 1, 1])"
        )
    return array
