"""Estimates of a gradient that remember earlier batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.solvers.parts.trees import scaled
from bilevel.types import PyTree, Scalar


class Point(NamedTuple):
    """Where a direction is estimated, or the three directions there."""

    x: PyTree
    y: PyTree
    v: PyTree


class Averages(NamedTuple):
    """What every fixed batch said last (SAGA), and the mean of it.

    A row is written one step late: a table that is read first and written after is copied whole at every step.
    """

    last: PyTree  # one row a batch
    mean: PyTree
    newest: PyTree  # what the batch drawn last said, which its row does not have yet
    number: Int[Array, ""]  # of that batch


def average_of(last: PyTree) -> Averages:
    mean, first = (jax.tree.map(part, last) for part in (lambda a: jnp.mean(a, axis=0), lambda a: a[0]))
    return Averages(last, mean, first, jnp.int32(0))


def corrected(kept: Averages, new: PyTree, number: Int[Array, ""]) -> tuple[PyTree, Averages]:
    """The mean of all that is remembered, corrected by what this batch says now: unbiased, and exact at a limit."""
    put = lambda table, row: lax.dynamic_update_index_in_dim(table, row, kept.number, 0)
    last = jax.tree.map(put, kept.last, kept.newest)
    change = jax.tree.map(lambda a, b: a - lax.dynamic_index_in_dim(b, number, keepdims=False), new, last)
    mean = tree.add(kept.mean, scaled(1 / jax.tree.leaves(last)[0].shape[0], change))
    return tree.add(kept.mean, change), Averages(last, mean, new, number)


def recursive(estimate: PyTree, now: PyTree, before: PyTree, momentum: Any = 0.0) -> PyTree:
    """now + (1 − η)(estimate − before), both on one batch, at this and at the last point: STORM, for η = 0 SARAH."""
    return tree.add(now, scaled(1 - jnp.asarray(momentum), tree.sub(estimate, before)))


def at_both(function: Callable[[Any], PyTree], now: Any, before: Any) -> tuple[PyTree, PyTree]:
    """`function` at two points in one pass over its data."""
    both = jax.vmap(function)(jax.tree.map(lambda *pair: jnp.stack(pair), now, before))
    part = lambda i: jax.tree.map(lambda a: a[i], both)
    return part(0), part(1)


def leaning(function: Callable[[PyTree], Scalar], at: PyTree, estimate: PyTree) -> Callable[[PyTree], Scalar]:
    """The function plus a linear term that turns its gradient at a point into the estimate."""

    def value(point: PyTree) -> Scalar:
        slope = tree.sub(estimate, jax.grad(function)(at))
        return function(point) + tree.vdot(slope, tree.sub(point, at))

    return value
