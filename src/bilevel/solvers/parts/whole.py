"""Access to all the data that a minibatch was drawn from."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import Batch
from bilevel.solvers.parts.trees import scaled
from bilevel.types import PyTree

CACHE = 4 * 2**20  # bytes of data that are read in one piece


class Place(NamedTuple):
    """Number of a fixed batch, and the number of fixed batches."""

    number: Int[Array, ""]
    of: int


def whole(batch: Batch | None, method: str) -> Batch | None:
    """Return all the data; raise if they are not in memory."""
    if batch is None or batch.whole is None:
        return batch
    for level in ("inner", "outer"):
        if getattr(batch, level) is not None and getattr(batch.whole, level) is None:
            raise ValueError(
                f"{method} goes back to all {level} data, which a loader or a stream of your own does not hold: "
                "pass arrays in memory, e.g. data=bl.blocks(bl.Batch(inner=..., outer=...), size=64)"
            )
    return replace(batch.whole, key=batch.key, state=batch.state)


def place(batch: Batch | None, level: str, method: str) -> Place:
    """Return the number of a level's batch among the fixed batches of its data; the whole data are one batch."""
    everything = whole(batch, method)
    if batch is None or everything is None or (data := getattr(batch, level)) is None:
        return Place(jnp.int32(0), 1)
    rows, number = _rows(data), getattr(batch.block, level)
    if number is not None:
        return Place(number, _rows(getattr(everything, level)) // rows)
    if batch.whole is not None and data is not getattr(everything, level):
        raise ValueError(
            f"{method} remembers every batch of a fixed set, but the {level} rows are drawn again at every step: pass "
            f"data=bl.blocks(data, size={rows}) in place of bl.epochs or bl.iid"
        )
    return Place(jnp.int32(0), 1)


def each(function: Callable[[Batch | None], PyTree], batch: Batch | None, level: str, count: int) -> PyTree:
    """Return `function` of every fixed batch of a level's data, along a new first axis."""
    if batch is None or count == 1:
        return jax.tree.map(lambda a: a[None], function(batch))
    return lax.map(lambda part: function(_with(batch, level, part)), _pieces(batch, level, count))


def mean(function: Callable[[Batch | None], PyTree], batch: Batch | None, level: str, method: str) -> PyTree:
    """Return `function` of all data of a level.

    For many data it is the mean over pieces of a batch's length, if these fit. A piece stays in the
    processor's cache. That is several times faster than all data at once, and takes less memory.
    """
    everything = whole(batch, method)
    if batch is None or everything is None or (data := getattr(batch, level)) is None:
        return function(everything)
    of_level = getattr(everything, level)
    count, rest = divmod(_rows(of_level), _rows(data))
    if rest or sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(of_level)) <= CACHE:
        return function(everything)
    parts = _pieces(batch, level, count)
    add = lambda total, part: (tree.add(total, function(_with(batch, level, part))), None)
    like = jax.eval_shape(lambda: function(_with(batch, level, jax.tree.map(lambda a: a[0], parts))))
    total, _ = lax.scan(add, jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), like), parts)
    return scaled(1 / count, total)


def _pieces(batch: Batch, level: str, count: int) -> tuple[PyTree, PyTree]:
    """Return a level's data and row numbers, in pieces along a new first axis."""
    parts = getattr(batch.whole, level), getattr(batch.whole.rows, level)
    return jax.tree.map(lambda a: jnp.reshape(a, (count, -1, *jnp.shape(a)[1:])), parts)


def _with(batch: Batch, level: str, piece: tuple[PyTree, PyTree]) -> Batch:
    data, rows = piece
    return replace(batch, rows=batch.rows._replace(**{level: rows}), **{level: data})


def _rows(data: PyTree) -> int:
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(data)]
    if not shapes or not shapes[0]:
        raise ValueError(
            f"the data of a method that remembers batches need one row per example, but their shapes are {shapes}: "
            "bind what has no rows to the objective, e.g. with functools.partial"
        )
    return shapes[0][0]
