"""Estimates of a gradient that remember earlier batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.solvers.parts.lagrangian import tilted
from bilevel.solvers.parts.trees import divide, dot, scaled
from bilevel.types import PyTree, Scalar


class Point(NamedTuple):
    """Point where a direction is estimated, or the three directions there."""

    x: PyTree
    y: PyTree
    v: PyTree


class Averages(NamedTuple):
    """Last value on every fixed batch (SAGA), and their mean.

    A row is written one step late: a table that is first read and then written is copied whole at every step.
    """

    last: PyTree  # one row a batch
    mean: PyTree
    newest: PyTree  # the value on the last batch, which is not in its row yet
    number: Int[Array, ""]  # of that batch


def average_of(last: PyTree) -> Averages:
    mean, first = (jax.tree.map(part, last) for part in (lambda a: jnp.mean(a, axis=0), lambda a: a[0]))
    return Averages(last, mean, first, jnp.int32(0))


def corrected(kept: Averages, new: PyTree, number: Int[Array, ""]) -> tuple[PyTree, Averages]:
    """Return the mean of the stored values, corrected by the new one: unbiased, and exact at a limit."""
    put = lambda table, row: lax.dynamic_update_index_in_dim(table, row, kept.number, 0)
    last = jax.tree.map(put, kept.last, kept.newest)
    change = jax.tree.map(lambda a, b: a - lax.dynamic_index_in_dim(b, number, keepdims=False), new, last)
    mean = tree.add(kept.mean, scaled(1 / jax.tree.leaves(last)[0].shape[0], change))
    return tree.add(kept.mean, change), Averages(last, mean, new, number)


def recursive(estimate: PyTree, now: PyTree, before: PyTree, momentum: Any = 0.0) -> PyTree:
    """Return now + (1 − η)(estimate − before), on one batch at two points: STORM, for η = 0 SARAH."""
    return tree.add(now, scaled(1 - jnp.asarray(momentum), tree.sub(estimate, before)))


def at_both(function: Callable[[Any], PyTree], now: Any, before: Any) -> tuple[PyTree, PyTree]:
    """Return the values of `function` at two points, from one pass over its data."""
    both = jax.vmap(function)(jax.tree.map(lambda *pair: jnp.stack(pair), now, before))
    part = lambda i: jax.tree.map(lambda a: a[i], both)
    return part(0), part(1)


def leaning(function: Callable[[PyTree], Scalar], at: PyTree, estimate: PyTree) -> Callable[[PyTree], Scalar]:
    """Return the function plus a linear term that changes its gradient at a point into the estimate."""
    return lambda point: tilted(function, at, jax.grad(function)(at), estimate)(point)


def noise_share(before: Any, now: Any, v: PyTree, floors: list[Scalar]) -> Scalar:
    """Return the largest share of noise in (∇_y g, the residual, h): ‖now − before‖²/(2‖now‖²), at most 1.

    A difference that may be rounding counts as zero. The floors are for ⟨v, Δ∇_y g⟩, the first-order change
    of Φ, and for the norms of the other two.
    """
    square = lambda t: tree.norm(t, squared=True)
    apart = [tree.sub(a, b) for a, b in zip(now, before, strict=True)]
    sizes = jnp.abs(dot(v, apart[0])), tree.norm(apart[1]), tree.norm(apart[2])

    def share(size: Scalar, floor: Scalar, d: PyTree, part: PyTree) -> Scalar:
        clear = size.astype(floor.dtype) > floor
        return jnp.where(clear, divide(square(d), 2 * square(part)).astype(floor.dtype), 0)

    return jnp.minimum(1, jnp.max(jnp.stack(list(map(share, sizes, floors, apart, now)))))
