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

from bilevel.arrays import as_arrays
from bilevel.batch import Batch, Draws, Levels
from bilevel.checks import check_count
from bilevel.types import PyTree


@runtime_checkable
class Stream(Protocol):
    """What [`scan`][bilevel.scan] and [`run`][bilevel.run] draw batches from."""

    def start(self, step: int) -> PyTree: ...
    def next(self, cursor: Any) -> tuple[Any, Any]: ...


def draw(
    stream: Stream, cursor: PyTree, count: int, paired: bool = False
) -> tuple[PyTree, Batch | Draws | None]:
    """The cursor after `count` independent batches, and the batches: one as it is, several as `Draws`.

    `paired` is for solvers to which a row is the same thing at both levels.
    """
    if paired and isinstance(stream, Minibatches):
        stream, cursor = stream.paired(cursor)
    if count == 1 or isinstance(stream, Given):
        return stream.next(cursor)
    if isinstance(stream, FullBatch):  # the same data for every draw, each with a key of its own
        cursor, batch = stream.next(cursor)
        return cursor, Draws(Batch(), Batch() if batch is None else batch)
    if isinstance(stream, Minibatches):
        return stream.draws(cursor, count)
    cursor, stacked = lax.scan(lambda cursor, _: stream.next(cursor), cursor, length=count)
    return cursor, Draws(stacked, Batch())


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=[])
@dataclass(frozen=True)
class FullBatch:
    """All the data at every step."""

    data: Batch | None = None

    def start(self, step: int) -> tuple:
        return ()

    def next(self, cursor: tuple) -> tuple[tuple, Batch | None]:
        return cursor, self.data if self.data is None else _with_rows(self.data)


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=[])
@dataclass(frozen=True)
class Given:
    """What a loader gave for one step, as it is."""

    data: Batch | Draws

    def start(self, step: int) -> tuple:
        return ()

    def next(self, cursor: tuple) -> tuple[tuple, Batch | Draws]:
        return cursor, self.data


@partial(jax.tree_util.register_dataclass, data_fields=["data", "samplers"], meta_fields=[])
@dataclass(frozen=True)
class Minibatches:
    """Each level's examples drawn by a sampler of its own (`None`: all of them at every step)."""

    data: Batch
    samplers: Levels

    def start(self, step: int) -> Levels:
        return Levels(*(None if sampler is None else sampler.start(step) for sampler in self.samplers))

    def next(self, cursor: Levels) -> tuple[Levels, Batch]:
        cursor, rows = self._rows(cursor)
        parts = Levels(*(_take(getattr(self.data, level), at) for level, at in rows._asdict().items()))
        return cursor, _with_rows(Batch(*parts, rows=rows))

    def draws(self, cursor: Levels, count: int) -> tuple[Levels, Draws]:
        """`count` batches at once; a level without a sampler is stored once."""
        cursor, rows = lax.scan(lambda cursor, _: self._rows(cursor), cursor, length=count)
        drawn = Levels(
            *(
                None if at is None else _take(getattr(self.data, level), at)
                for level, at in rows._asdict().items()
            )
        )
        whole = {level: getattr(self.data, level) for level, at in rows._asdict().items() if at is None}
        return cursor, Draws(Batch(*drawn, rows=rows), _with_rows(Batch(**whole)))

    def paired(self, cursor: Levels) -> tuple["Minibatches", Levels]:
        """The same with the inner level's rows at both levels, and where it stands."""
        inner, outer = self.samplers
        if inner is None or outer is None:
            return self, cursor
        if (inner.examples, inner.size) != (outer.examples, outer.size):
            raise ValueError(
                f"this solver takes the same rows of both levels, but {inner.size} of {inner.examples} inner and "
                f"{outer.size} of {outer.examples} outer rows were asked for: give both levels one row per task, and "
                "one size"
            )
        return Minibatches(self.data, Levels(inner, inner)), Levels(cursor.inner, cursor.inner)

    def _rows(self, cursor: Levels) -> tuple[Levels, Levels]:
        moved = [
            (None, None) if sampler is None else sampler.next(at)
            for sampler, at in zip(self.samplers, cursor, strict=True)
        ]
        return Levels(*(after for after, _ in moved)), Levels(*(rows for _, rows in moved))


def _take(arrays: PyTree, rows: Any) -> PyTree:
    """Those rows of every array; all of them for `None`."""
    # An index out of range would show as NaN, not as a silently repeated example.
    return arrays if rows is None else jax.tree.map(lambda a: jnp.take(a, rows, axis=0, mode="fill"), arrays)


def _with_rows(batch: Batch) -> Batch:
    """A level whose arrays share their first axis, and whose rows nobody named, holds all rows in order."""
    rows = [
        _all_rows(arrays) if named is None else named
        for arrays, named in zip((batch.inner, batch.outer), batch.rows, strict=True)
    ]
    return Batch(batch.inner, batch.outer, Levels(*rows), batch.key, batch.state)


def _all_rows(arrays: PyTree) -> jax.Array | None:
    shapes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(arrays)}
    if len(shapes) != 1 or () in shapes:
        return None
    return lax.iota(jnp.int32, shapes.pop()[0])


@partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["examples", "size"])
@dataclass(frozen=True)
class Independent:
    """`size` draws with replacement at every step; the cursor is the step number."""

    key: PyTree  # an array; its axis where a sweep says what it goes over
    examples: int
    size: int

    def start(self, step: int) -> jax.Array:
        return _counter(step)

    def next(self, cursor: jax.Array) -> tuple[jax.Array, jax.Array]:
        key = jax.random.fold_in(self.key, cursor)
        return cursor + 1, jax.random.randint(key, (self.size,), 0, self.examples)


@partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["examples", "size"])
@dataclass(frozen=True)
class Shuffled:
    """One random permutation after another, cut into slices of `size`.

    Every example comes exactly once per epoch. Where `size` does not divide the number of examples, a batch
    takes the end of one epoch and the beginning of the next, so all batches have one shape and none is lost.
    The cursor is (epoch, position in it, this epoch's permutation followed by the next one's); the permutations follow
    from the epoch, and are carried along so that they are computed once.
    """

    key: PyTree  # an array; its axis where a sweep says what it goes over
    examples: int
    size: int

    def start(self, step: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        epoch, position = divmod(int(step) * self.size, self.examples)
        order = jnp.concatenate([self._permutation(_counter(epoch)), self._permutation(_counter(epoch + 1))])
        return _counter(epoch), jnp.int32(position), order

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


def _counter(number: int) -> jax.Array:
    """Steps and epochs count modulo 2³²."""
    return jnp.uint32(int(number) % 2**32)


def epochs(data: Batch, size: int | Batch | Levels, seed: Any = 0) -> Minibatches:
    """Shuffled epochs of minibatches from arrays in memory: every example exactly once per epoch.

    Args:
        data: the arrays of each level; all of a level's arrays share their first axis.
        size: examples per step, or `Batch(inner=..., outer=...)`; `None` for a level means all of it.
        seed: a whole number, possibly traced; the two levels are shuffled independently, except for meta-learners,
            to whom a row of either level is the same task.
    """
    return _minibatches(Shuffled, data, size, seed)


def iid(data: Batch, size: int | Batch | Levels, seed: Any = 0) -> Minibatches:
    """Minibatches drawn independently with replacement; arguments as for [`epochs`][bilevel.epochs]."""
    return _minibatches(Independent, data, size, seed)


def as_stream(data: Any) -> Stream:
    """A stream as it is; a `Batch` or `None` as the full batch at every step."""
    if data is None:
        return FullBatch(None)
    if isinstance(data, Batch):
        inner, outer = as_arrays(data.inner, "data.inner"), as_arrays(data.outer, "data.outer")
        return FullBatch(Batch(inner, outer, data.rows, data.key, data.state))
    if isinstance(data, Stream):
        return data
    raise TypeError(
        f"data must be a bl.Batch or a stream of them, not {type(data).__name__}: "
        "pass bl.Batch(inner=..., outer=...), bl.epochs(...) or bl.iid(...)"
    )


def _minibatches(sampler: Callable, data: Batch, size: int | Batch | Levels, seed: Any) -> Minibatches:
    if not isinstance(data, Batch):
        raise TypeError(
            f"data must be a bl.Batch, not {type(data).__name__}: pass bl.Batch(inner=..., outer=...)"
        )
    if data.key is not None or data.state is not None or any(rows is not None for rows in data.rows):
        raise ValueError(
            "the data of minibatches are arrays alone, and their rows, key and state come from the loop: leave these "
            "out of the bl.Batch (rows of your own can be one more array of the data)"
        )
    arrays = Levels(as_arrays(data.inner, "data.inner"), as_arrays(data.outer, "data.outer"))
    if isinstance(size, Batch | Levels):
        sizes = Levels(size.inner, size.outer)
    else:
        sizes = Levels(*(None if level is None else size for level in arrays))
    samplers = [
        None if wanted is None else _sampler(sampler, level, wanted, key, name)
        for level, wanted, key, name in zip(
            arrays, sizes, jax.random.split(jax.random.key(seed), 2), Levels._fields, strict=True
        )
    ]
    return Minibatches(Batch(*arrays), Levels(*samplers))


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
