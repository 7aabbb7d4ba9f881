"""Proximal maps of inner penalties that are not smooth, for `bl.Problem(..., prox=...)`.

Each map is a function `(x, z, step)` that returns argmin_y h(x, y) + ‖y − z‖²/(2·step). A strength is a
number, an array or a function of x, which can be learned. The function returns one number, an array that
broadcasts or a tree like y. A strength must not be negative (write `jnp.exp(x)` or a softplus): below zero it
counts as zero and has no gradient.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.callables import check_callable
from bilevel.checks import as_number
from bilevel.types import PyTree
from bilevel.words import shown

Prox = Callable[[PyTree, PyTree, Any], PyTree]
Strength = Callable[[PyTree], Any] | float | np.ndarray | jax.Array

MANY = 10**6  # groups that may have no entries


def l1(strength: Strength) -> Prox:
    """Return the map of λ(x)‖y‖₁: every entry moves toward zero by step·λ and stops at zero."""
    strength = _function(strength, "strength")

    def prox(x: PyTree, z: PyTree, step: Any) -> PyTree:
        return _each(_soft, z, _times(step, _at(x, strength, "strength")), "strength")

    return prox


def elastic_net(l1: Strength, l2: Strength) -> Prox:
    """Return the map of λ₁(x)‖y‖₁ + ½λ₂(x)‖y‖²."""
    first, second = _function(l1, "l1"), _function(l2, "l2")

    def prox(x: PyTree, z: PyTree, step: Any) -> PyTree:
        sparse = _each(_soft, z, _times(step, _at(x, first, "l1")), "l1")
        return _each(lambda a, t: a / (1 + t), sparse, _times(step, _at(x, second, "l2")), "l2")

    return prox


def group_lasso(strength: Strength, groups: Any) -> Prox:
    """Return the map of Σ_j λ_j(x)‖y_j‖₂ over groups j of entries of the array y: whole groups become exactly zero.

    Args:
        strength: λ, a function of x that returns one number, or one per group; or a number.
        groups: the group of each entry of y, whole numbers from 0 on, shaped like y.
    """
    return sparse_group_lasso(0.0, strength, groups)


def sparse_group_lasso(l1: Strength, strength: Strength, groups: Any) -> Prox:
    """Return the map of λ₁(x)‖y‖₁ + Σ_j λ_j(x)‖y_j‖₂: groups become zero, and entries within other groups.

    Args:
        l1: λ₁, the strength for entries.
        strength: λ, the strength for groups.
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
        z = _each(_soft, z, _times(step, _at(x, first, "l1")), "l1")
        of_groups = _at(x, second, "strength")
        if not _numeric(of_groups) or jnp.shape(of_groups) not in ((), (1,), (count,)):
            found = jnp.shape(of_groups) if _numeric(of_groups) else jax.tree.structure(of_groups)
            raise ValueError(
                f"strength of prox has shape {found}, but there are {count} groups: return one number, or one for each"
            )
        squares = jax.ops.segment_sum((z * z).ravel(), groups.ravel(), num_segments=count)
        threshold = jnp.broadcast_to(jnp.asarray(_times(step, of_groups), z.dtype), (count,))
        kept = squares > threshold**2
        size = jnp.sqrt(jnp.where(kept, squares, 1))  # no derivative of √0
        return z * jnp.where(kept, 1 - threshold / size, 0)[groups]

    return prox


def box(low: Strength, high: Strength) -> Prox:
    """Return the projection onto low(x) ≤ y ≤ high(x); the bounds may depend on x."""
    lower, upper = _function(low, "low"), _function(high, "high")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        raise ValueError(
            f"low must not exceed high, but low is {shown(low)} and high {shown(high)}: exchange them"
        )

    def prox(x: PyTree, z: PyTree, step: Any) -> PyTree:
        above = _each(jnp.maximum, z, _at(x, lower, "low"), "low")
        return _each(jnp.minimum, above, _at(x, upper, "high"), "high")

    return prox


def _soft(a: jax.Array, threshold: jax.Array) -> jax.Array:
    return a - jnp.clip(a, -threshold, threshold)


def _function(value: Strength, name: str) -> Callable[[PyTree], Any]:
    """Return a strength as a function of x; raise for a constant that is no number or array."""
    if callable(value):
        return check_callable(value, name, 1, "a function of x, or a number or array", "lambda x: jnp.exp(x)")
    bound = name in ("low", "high")
    if not _numeric(value) or not (isinstance(value, Tracer) or _allowed(value, bound)):
        kind = "" if bound else " that is finite and not negative"
        raise ValueError(
            f"{name} must be a function of x, or a number or array{kind}, not {shown(value)}: pass e.g. 0.1"
            + (", or infinity for no bound" if bound else "")
        )
    return lambda x: _float(value)


def _float(value: Any) -> Any:
    """Return a Python int as a float, since JAX takes only ints of 32 or 64 bits."""
    return as_number(value) if isinstance(value, int) else value


def _numeric(value: Any) -> bool:
    if isinstance(value, int | float):
        return as_number(value) is not None
    array = isinstance(value, np.generic | np.ndarray | jax.Array) and not np.ma.isMaskedArray(value)
    if not array or (isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.is_deleted()):
        return False
    return jnp.issubdtype(value.dtype, np.floating) or jnp.issubdtype(value.dtype, np.integer)


def _allowed(value: Any, bound: bool) -> bool:
    numbers = np.asarray(_float(value), float)
    return not np.isnan(numbers).any() if bound else bool((np.isfinite(numbers) & (numbers >= 0)).all())


def _at(x: PyTree, strength: Callable[[PyTree], Any], name: str) -> Any:
    """Return a strength at x: a tree of numbers."""
    value = strength(x)
    leaves = jax.tree.leaves(value, is_leaf=lambda leaf: leaf is None) or [value]
    for leaf in leaves:
        if not _numeric(leaf):
            raise TypeError(
                f"{name} of prox returned {shown(value)} at x: return a number, an array that broadcasts to y, or a "
                "tree like y"
            )
    return jax.tree.map(_float, value)


def _times(step: Any, strength: Any) -> Any:
    """Return step · strength; negative strengths count as zero."""

    def one(s: Any) -> jax.Array:
        s = jnp.maximum(s, 0)
        if not jnp.issubdtype(s.dtype, jnp.floating):  # an integer step would be 0
            s = s.astype(float)
        return jnp.asarray(step, s.dtype) * s

    return jax.tree.map(one, strength)


def _each(function: Callable[..., Any], z: PyTree, values: Any, name: str) -> PyTree:
    """Apply `function` to every leaf of z and its value, which may be the same for all leaves."""
    if jax.tree.structure(values) != jax.tree.structure(z):
        if not _numeric(values):
            raise TypeError(
                f"{name} of prox returned the tree {jax.tree.structure(values)}, but y has {jax.tree.structure(z)}: "
                "return one number or array for all of y, or a tree like y"
            )
        values = jax.tree.map(lambda _: values, z)

    def one(a: jax.Array, value: Any) -> jax.Array:
        value = jnp.asarray(value, a.dtype)
        try:
            fits = jnp.broadcast_shapes(a.shape, value.shape) == a.shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"{name} of prox has shape {value.shape}, which does not broadcast to y's {a.shape}: return one "
                "number, or one for each entry"
            )
        return function(a, value)

    return jax.tree.map(one, z, values)


def _groups(groups: Any) -> np.ndarray:
    try:
        array = np.empty(0) if np.ma.isMaskedArray(groups) else np.asarray(groups)
    except Exception:  # ragged, deleted, or with no numbers at all
        array = np.empty(0)
    if not array.size or not np.issubdtype(array.dtype, np.integer) or array.min() < 0:
        raise ValueError(
            f"groups must hold the number of a group, from 0 on, for each entry of y, not {shown(groups)}: pass e.g. "
            "np.array([0, 0, 1, 1])"
        )
    if array.max() >= MANY + array.size:
        raise ValueError(
            f"groups holds the number {array.max()} for only {array.size} entries: number the groups from 0 on, "
            "e.g. by np.unique(groups, return_inverse=True)[1]"
        )
    return array
