"""What a step sees: the data of both levels, which rows they are, a random key and the model's own state."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
from jax import lax

from bilevel.types import PyTree


class Levels(NamedTuple):
    """One thing of each level: row numbers, samplers, cursors."""

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
    """The data of one step: what the inner and the outer objective see (each any pytree, or `None`).

    `shared` holds constants for both levels: any pytree. Objectives that ask for the keyword `shared` receive it
    unchanged with every batch. Its arrays need no row per example.

    The other fields are filled by the loop, for objectives that ask for them by a keyword of that name: `rows`, the
    row numbers of each level's data, `key`, a random key of the draw, and `state`, what a model carries along
    besides its trained parameters (batch norm). Whoever calls `solver.step` by hand may fill them too.

    `whole` and `block` are for solvers that reduce the variance of minibatches. Where these are drawn from arrays in
    memory, `whole` has all of them, and `block` says which of its fixed batches a level has, if `bl.blocks` drew it.
    Without `whole` the batch is all there is.
    """

    inner: PyTree = None
    outer: PyTree = None
    rows: Any = NO_ROWS  # Levels
    key: PyTree = None
    state: PyTree = None
    whole: Any = None  # Batch; an empty one where nobody knows it
    block: Any = NO_ROWS  # Levels
    shared: PyTree = None


@partial(jax.tree_util.register_dataclass, data_fields=["stacked", "shared", "source"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class Draws:
    """Several independent batches for one step. What every draw shares is stored once.

    Of arrays in memory only the row numbers are stacked; `source.read(rows)` reads a draw's rows when it is used.
    """

    stacked: Any  # a Batch: the parts that differ, one row a draw; None elsewhere
    shared: Any  # a Batch: the parts that do not
    source: Any = None  # reads rows, or None if the rows of every draw are stacked

    def __getitem__(self, i: Any) -> Batch:
        """The i-th draw; i may be traced. Its key is a function of the step's key and i."""
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
    """`draws(batch)[i]` is the i-th batch of a step, whether there are several or one that serves for all."""
    return batch if isinstance(batch, Draws) else Same(batch)


def first(batch: "Batch | Draws | None") -> Batch | None:
    return draws(batch)[0]


def each_own(batch: "Batch | Draws | None", count: int) -> "Batch | Draws | None":
    """`count` draws, each with a key of its own: a single batch gives all of them its data."""
    return Draws(Batch(), batch) if count > 1 and isinstance(batch, Batch) else batch


def with_state(batch: Batch | None, state: PyTree) -> Batch | None:
    """The batch with that state of the model, if there is one."""
    return batch if batch is None or state is None else replace(batch, state=state)


def dressed(batch: "Batch | Draws | None", key: PyTree, state: PyTree) -> "Batch | Draws | None":
    """The batch with the step's key and the model's state, where there are any."""
    if key is None and state is None:
        return batch
    if isinstance(batch, Draws):
        return replace(batch, shared=cast(Batch, dressed(batch.shared, key, state)))
    batch = Batch() if batch is None else batch
    return replace(batch, key=batch.key if key is None else key, state=state)
