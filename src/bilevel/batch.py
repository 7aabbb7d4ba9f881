"""Data of one step, with their row numbers, a random key and the state of a model."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
from jax import lax

from bilevel.types import PyTree


class Levels(NamedTuple):
    """One value for each level, such as row numbers, samplers or cursors."""

    inner: Any = None
    outer: Any = None


NO_ROWS = Levels()


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["inner", "outer", "rows", "key", "state", "whole", "block", "shared"],
    meta_fields=[],
)
@dataclass(frozen=True, eq=False)
class Batch:
    """Data of one step for the inner and the outer objective, each any pytree or `None`.

    `shared` holds constants for both levels: any pytree. Objectives that ask for the keyword `shared` receive
    it unchanged with every batch. Its arrays need no row per example.

    The loop fills the other fields, for objectives that ask for a keyword of that name: `rows`, the row
    numbers of each level's data; `key`, a random key of the draw; and `state`, the state of a model without
    its trained parameters (batch norm). If you call `solver.step` yourself, you can fill them too.

    `whole` and `block` are for solvers that reduce the variance of minibatches. For minibatches of arrays in
    memory, `whole` is the data of all rows. If `bl.blocks` drew the batch, `block` is the number of its fixed
    batch at each level. Without `whole` the batch is all the data.
    """

    inner: PyTree = None
    outer: PyTree = None
    rows: Any = NO_ROWS  # Levels
    key: PyTree = None
    state: PyTree = None
    whole: Any = None  # Batch; an empty one if it is unknown
    block: Any = NO_ROWS  # Levels
    shared: PyTree = None


@partial(jax.tree_util.register_dataclass, data_fields=["stacked", "shared", "source"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class Draws:
    """Several independent batches for one step. Parts that all draws share are stored once.

    For arrays in memory only the row numbers are stacked; `source.read(rows)` reads the rows of a draw when needed.
    """

    stacked: Any  # a Batch: the parts that differ, one row per draw; None elsewhere
    shared: Any  # a Batch: the parts that do not
    source: Any = None  # reads rows, or None if the rows of every draw are stacked

    def __getitem__(self, i: Any) -> Batch:
        """Return the i-th draw; i may be traced. Its key is a function of the step's key and i."""
        pick = lambda stacked, shared: (
            shared
            if stacked is None
            else jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, keepdims=False), stacked)
        )
        drawn, same = self.stacked, self.shared
        both = lambda drawn, same: Levels(*(pick(*each) for each in zip(drawn, same, strict=True)))
        rows, block = both(drawn.rows, same.rows), both(drawn.block, same.block)
        key = same.key if same.key is None else jax.random.fold_in(same.key, i)
        if self.source is None:
            inner, outer = pick(drawn.inner, same.inner), pick(drawn.outer, same.outer)
        else:
            inner, outer = self.source.read(rows)
        shared = pick(drawn.shared, same.shared)
        return Batch(inner, outer, rows, key, same.state, same.whole, block, shared)


class Same(NamedTuple):
    """One batch that serves every draw."""

    batch: Batch | None

    def __getitem__(self, i: Any) -> Batch | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.batch


def draws(batch: "Batch | Draws | None") -> "Draws | Same":
    """Return an object whose i-th item is the i-th batch of a step; a single batch serves for all."""
    return batch if isinstance(batch, Draws) else Same(batch)


def first(batch: "Batch | Draws | None") -> Batch | None:
    return draws(batch)[0]


def each_own(batch: "Batch | Draws | None", count: int) -> "Batch | Draws | None":
    """Return `count` draws with different keys: a single batch gives all of them its data."""
    return Draws(Batch(), batch) if count > 1 and isinstance(batch, Batch) else batch


def with_state(batch: Batch | None, state: PyTree) -> Batch | None:
    """Return the batch with that state of the model, if there is one."""
    return batch if batch is None or state is None else replace(batch, state=state)


def dressed(batch: "Batch | Draws | None", key: PyTree, state: PyTree) -> "Batch | Draws | None":
    """Return the batch with the step's key and the model's state, if there are any."""
    if key is None and state is None:
        return batch
    if isinstance(batch, Draws):
        return replace(batch, shared=cast(Batch, dressed(batch.shared, key, state)))
    batch = Batch() if batch is None else batch
    return replace(batch, key=batch.key if key is None else key, state=state)
