"""Where the batch of a step comes from. A stream is a pytree, so its arrays are arguments, never constants.

`start(step) -> cursor` and `next(cursor) -> (cursor, batch)` are pure. The cursor follows from the step
number alone, so a resumed run sees exactly the batches an unbroken one would have seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax

from bilevel.checks import check_count
from bilevel.problem import Batch

PyTree = Any


@runtime_checkable
class Stream(Protocol):
    """What [`scan`][bilevel.scan] and [`run`][bilevel.run] draw batches from."""

    def start(self, step: int) -> PyTree: ...
    def next(self, cursor: Any) -> tuple[Any, Batch | None]: ...


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=[])
@dataclass(frozen=True)
class FullBatch:
    """All the data at every step."""

    data: Batch | None = None

    def start(self, step: int) -> tuple:
        return ()

    def next(self, cursor: tuple) -> tuple[tuple, Batch | None]:
        return cursor, self.data


@partial(jax.tree_util.register_dataclass, data_fields=["data", "samplers"], meta_fields=[])
@dataclass(frozen=True)
class Minibatches:
    """Each level's examples drawn by a sampler of its own (`None`: all of them at every step)."""

    data: Batch
    samplers: Batch

    def start(self, step: int) -> Batch:
        return Batch(*(None if sampler is None else sampler.start(step) for sampler in self.samplers))

    def next(self, cursor: Batch) -> tuple[Batch, Batch]:
        cursors, batches = list(cursor), list(self.data)
        for level, sampler in enumerate(self.samplers):
            if sampler is not None:
                cursors[level], indices = sampler.next(cursor[level])
                # An index out of range would show as NaN, not as a silently repeated example.
                batches[level] = jax.tree.map(
                    lambda a, rows=indices: jnp.take(a, rows, axis=0, mode="fill"), self.data[level]
                )
        return Batch(*cursors), Batch(*batches)


@partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["examples", "size"])
@dataclass(frozen=True)
class Independent:
    """`size` draws with replacement at every step; the cursor is the step number."""

    key: jax.Array
    examples: int
    size: int

    def start(self, step: int) -> jax.Array:
        return jnp.int32(step)

    def next(self, cursor: jax.Array) -> tuple[jax.Array, jax.Array]:
        key = jax.random.fold_in(self.key, cursor)
        return cursor + 1, jax.random.randint(key, (self.size,), 0, self.examples)


@partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["examples", "size"])
@dataclass(frozen=True)
class Shuffled:
    """One random permutation after another, cut into slices of `size`.

    Every example comes exactly once per epoch. Where `size` does not divide the number of examples, a batch
    takes the end of one epoch and the beginning of the next, so all batches have one shape and none is lost.
    The cursor is (epoch, position in it, this epoch's permutation followed by the next one's).
    """

    key: jax.Array
    examples: int
    size: int

    def start(self, step: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        epoch, position = divmod(step * self.size, self.examples)
        order = jnp.concatenate([self._permutation(epoch), self._permutation(epoch + 1)])
        return jnp.int32(epoch), jnp.int32(position), order

    def next(self, cursor: tuple) -> tuple[tuple, jax.Array]:
        epoch, position, order = cursor
        indices = lax.dynamic_slice(order, (position,), (self.size,))
        position = position + self.size
        # The predicate depends on the step alone: under vmap over seeds this stays a branch, not a select.
        cursor = lax.cond(position >= self.examples, self._turn, lambda *same: same, epoch, position, order)
        return cursor, indices

    def _turn(self, epoch: jax.Array, position: jax.Array, order: jax.Array) -> tuple:
        following = jnp.concatenate([order[self.examples :], self._permutation(epoch + 2)])
        return epoch + 1, position - self.examples, following

    def _permutation(self, epoch: Any) -> jax.Array:
        return jax.random.permutation(jax.random.fold_in(self.key, epoch), self.examples)


def epochs(data: Batch, size: int | Batch, seed: Any = 0) -> Minibatches:
    """Shuffled epochs of minibatches from arrays in memory: every example exactly once per epoch.

    Args:
        data: the arrays of each level; all of a level's arrays share their first axis.
        size: examples per step, or `Batch(inner=..., outer=...)`; `None` for a level means all of it.
        seed: a whole number, possibly traced; the two levels are shuffled independently.
    """
    return _minibatches(Shuffled, data, size, seed)


def iid(data: Batch, size: int | Batch, seed: Any = 0) -> Minibatches:
    """Minibatches drawn independently with replacement; arguments as for [`epochs`][bilevel.epochs]."""
    return _minibatches(Independent, data, size, seed)


def as_stream(data: Any) -> Stream:
    """A stream as it is; a `Batch` or `None` as the full batch at every step."""
    if data is None or isinstance(data, Batch):
        return FullBatch(data)
    if isinstance(data, Stream):
        return data
    raise TypeError(
        f"data must be a bl.Batch or a stream of them, not {type(data).__name__}: "
        "pass bl.Batch(inner=..., outer=...), bl.epochs(...) or bl.iid(...)"
    )


def _minibatches(sampler: Callable, data: Batch, size: int | Batch, seed: Any) -> Minibatches:
    if not isinstance(data, Batch):
        raise TypeError(
            f"data must be a bl.Batch, not {type(data).__name__}: pass bl.Batch(inner=..., outer=...)"
        )
    sizes = (
        size if isinstance(size, Batch) else Batch(*(size if level is not None else None for level in data))
    )
    samplers = [
        None if wanted is None else _sampler(sampler, arrays, wanted, key, level)
        for arrays, wanted, key, level in zip(
            data, sizes, jax.random.split(jax.random.key(seed), 2), Batch._fields, strict=True
        )
    ]
    return Minibatches(Batch(*(jax.tree.map(jnp.asarray, arrays) for arrays in data)), Batch(*samplers))


def _sampler(sampler: Callable, arrays: PyTree, size: int, key: jax.Array, level: str) -> Any:
    lengths = {len(leaf) if jnp.ndim(leaf) else 0 for leaf in jax.tree.leaves(arrays)}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"the {level} arrays must share their first axis, the examples, but have lengths "
            f"{sorted(lengths)}: give every array one row per example"
        )
    (examples,) = lengths
    if check_count(size, f"the {level} batch size") > examples:
        raise ValueError(
            f"the {level} batch size {size} exceeds the {examples} examples: use at most {examples}, or None for all"
        )
    return sampler(key, examples, int(size))
