"""Where the batch of a step comes from. A stream is a pytree, so its arrays are arguments, never constants.

`start(step) -> cursor` and `next(cursor) -> (cursor, batch)` are pure. The cursor follows from the step
number alone, so a resumed run sees exactly the batches an unbroken one would have seen.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from bilevel.arrays import as_arrays
from bilevel.batch import Batch, Draws, Levels
from bilevel.checks import check_count, check_traced_seed
from bilevel.loop.devices.mesh_spec import size_of
from bilevel.types import PyTree

UNKNOWN = Batch(whole=Batch())  # a part of data that nobody holds


@runtime_checkable
class Stream(Protocol):
    """What `bl.scan` and `bl.run` draw batches from."""

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
    one = lambda cursor, _: _parted(*stream.next(cursor))
    cursor, stacked = lax.scan(one, cursor, length=count)
    return cursor, Draws(stacked, UNKNOWN)


def _parted(cursor: PyTree, batch: Batch) -> tuple[PyTree, Batch]:
    """Without the whole data, of which a stack of draws would hold copies."""
    return cursor, replace(batch, whole=None)


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=[])
@dataclass(frozen=True)
class FullBatch:
    """All the data at every step."""

    data: Batch | None = None

    def start(self, step: int) -> tuple[Any, ...]:
        return ()

    def next(self, cursor: tuple[Any, ...]) -> tuple[tuple[Any, ...], Batch | None]:
        return cursor, self.data if self.data is None else _with_rows(self.data)


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=[])
@dataclass(frozen=True)
class Given:
    """What a loader gave for one step, as it is."""

    data: Batch | Draws

    def start(self, step: int) -> tuple[Any, ...]:
        return ()

    def next(self, cursor: tuple[Any, ...]) -> tuple[tuple[Any, ...], Batch | Draws]:
        part = lambda batch: replace(batch, whole=UNKNOWN.whole)
        given = self.data
        if isinstance(given, Draws):
            return cursor, replace(given, shared=part(given.shared))
        return cursor, part(given)


@partial(jax.tree_util.register_dataclass, data_fields=["data", "samplers"], meta_fields=["split"])
@dataclass(frozen=True)
class Minibatches:
    """Each level's examples drawn by a sampler of its own (`None`: all of them at every step)."""

    data: Batch
    samplers: Levels
    split: NamedSharding | None = None  # how the rows of a batch lie on several devices

    def start(self, step: int) -> Levels:
        return Levels(*(None if sampler is None else sampler.start(step) for sampler in self.samplers))

    def next(self, cursor: Levels) -> tuple[Levels, Batch]:
        cursor, rows = self._rows(cursor)
        batch = _with_rows(Batch(*self.read(rows), rows=rows, shared=self.data.shared))
        return cursor, replace(batch, whole=_with_rows(self.data), block=self._blocks(rows))

    def draws(self, cursor: Levels, count: int) -> tuple[Levels, Draws]:
        """`count` batches, of which the row numbers are drawn at once, and the rows read when they are used."""
        cursor, rows = lax.scan(lambda cursor, _: self._rows(cursor), cursor, length=count)
        same = self._each(lambda sampler, arrays, _: None if sampler else arrays, rows)
        shared = replace(_with_rows(Batch(*same, shared=self.data.shared)), whole=_with_rows(self.data))
        return cursor, Draws(Batch(rows=rows, block=self._blocks(rows)), shared, self)

    def read(self, rows: Levels) -> Levels:
        """Those rows of each level; all of a level without a sampler."""
        return self._each(
            lambda sampler, arrays, at: self._spread(sampler.take(arrays, at)) if sampler else arrays, rows
        )

    def _each(self, function: Callable[..., Any], rows: Levels) -> Levels:
        """`function(sampler, arrays, rows)` of each level; the sampler is `None` where there is none."""
        return Levels(*map(function, self.samplers, (self.data.inner, self.data.outer), rows))

    def _spread(self, arrays: PyTree) -> PyTree:
        """Rows over the devices, if they divide them."""
        if self.split is None:
            return arrays
        parts = size_of(self.split.mesh, self.split.spec[0])
        fits = lambda leaf: leaf.shape[0] % parts == 0
        return jax.tree.map(
            lambda leaf: lax.with_sharding_constraint(leaf, self.split) if fits(leaf) else leaf, arrays
        )

    def _blocks(self, rows: Levels) -> Levels:
        return self._each(
            lambda sampler, _, at: sampler.block(at) if isinstance(sampler, Blocks) else None, rows
        )

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
        return replace(self, samplers=Levels(inner, inner)), Levels(cursor.inner, cursor.inner)

    def _rows(self, cursor: Levels) -> tuple[Levels, Levels]:
        moved = [
            (None, None) if sampler is None else sampler.next(at)
            for sampler, at in zip(self.samplers, cursor, strict=True)
        ]
        return Levels(*(after for after, _ in moved)), Levels(*(rows for _, rows in moved))


class Sampler:
    """`start(step) -> cursor` and `next(cursor) -> (cursor, rows)`."""

    def take(self, arrays: PyTree, rows: jax.Array) -> PyTree:
        """Those rows of every array."""
        # An index out of range would show as NaN, not as a silently repeated example.
        return jax.tree.map(lambda a: jnp.take(a, rows, axis=0, mode="fill"), arrays)


def _with_rows(batch: Batch) -> Batch:
    """A level whose arrays share their first axis, and whose rows nobody named, holds all rows in order."""
    rows = [
        _all_rows(arrays) if named is None else named
        for arrays, named in zip((batch.inner, batch.outer), batch.rows, strict=True)
    ]
    return replace(batch, rows=Levels(*rows))


def _all_rows(arrays: PyTree) -> jax.Array | None:
    shapes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(arrays)}
    if len(shapes) != 1 or () in shapes:
        return None
    return lax.iota(jnp.int32, shapes.pop()[0])


@partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["examples", "size"])
@dataclass(frozen=True)
class Independent(Sampler):
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
class Shuffled(Sampler):
    """One random permutation after another, cut into slices of `size`.

    Every example comes exactly once per epoch. Where `size` does not divide the number of examples, a batch
    takes the end of one epoch and the beginning of the next, so all batches have one shape and none is lost.
    The cursor is (epoch, position in it or just behind it, this epoch's permutation followed by the next one's); the
    permutations follow from the epoch, and are carried along so that they are computed once.
    """

    key: PyTree  # an array; its axis where a sweep says what it goes over
    examples: int
    size: int

    def start(self, step: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        epoch, position = divmod(int(step) * self.size, self.examples)
        order = jnp.concatenate([self._permutation(_counter(epoch)), self._permutation(_counter(epoch + 1))])
        return _counter(epoch), jnp.int32(position), order

    def next(self, cursor: tuple[Any, ...]) -> tuple[tuple[Any, ...], jax.Array]:
        # The predicate depends on the step alone: under vmap over seeds this stays a branch, not a select. It comes
        # first, as a branch that nothing waits for is handed to another thread, at more than its own price.
        cursor = lax.cond(cursor[1] >= self.examples, self._turn, lambda *same: same, *cursor)
        epoch, position, order = cursor
        return (epoch, position + self.size, order), lax.dynamic_slice(order, (position,), (self.size,))

    def _turn(self, epoch: jax.Array, position: jax.Array, order: jax.Array) -> tuple[Any, ...]:
        following = jnp.concatenate([order[self.examples :], self._permutation(epoch + 2)])
        return epoch + 1, position - self.examples, following

    def _permutation(self, epoch: Any) -> jax.Array:
        return jax.random.permutation(jax.random.fold_in(self.key, epoch), self.examples)


@partial(jax.tree_util.register_dataclass, data_fields=["key"], meta_fields=["examples", "size"])
@dataclass(frozen=True)
class Blocks(Sampler):
    """The rows cut once into consecutive slices of `size`, of which every epoch takes each once, in a random order."""

    key: PyTree  # an array; its axis where a sweep says what it goes over
    examples: int
    size: int

    def __post_init__(self) -> None:
        if left := self.examples % self.size:
            raise ValueError(
                f"blocks of {self.size} leave {left} of the {self.examples} examples over, and all must have one "
                f"shape: choose a size that divides {self.examples}, or leave {left} examples out"
            )

    @property
    def order(self) -> Shuffled:
        return Shuffled(self.key, self.examples // self.size, 1)

    def start(self, step: int) -> tuple[Any, ...]:
        return self.order.start(step)

    def next(self, cursor: tuple[Any, ...]) -> tuple[tuple[Any, ...], jax.Array]:
        cursor, number = self.order.next(cursor)
        return cursor, self.size * number.astype(jnp.int32) + lax.iota(jnp.int32, self.size)

    def take(self, arrays: PyTree, rows: jax.Array) -> PyTree:
        return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, rows[0], self.size), arrays)  # no gathering

    def block(self, rows: jax.Array) -> jax.Array:
        """The number of the slice."""
        return rows[..., 0] // self.size


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
    """Minibatches drawn independently with replacement; arguments as for `bl.epochs`."""
    return _minibatches(Independent, data, size, seed)


def blocks(data: Batch, size: int | Batch | Levels, seed: Any = 0) -> Minibatches:
    """Fixed minibatches: the rows are cut once into slices of `size`, which every epoch takes in another order.

    For `bl.saba`, which remembers every batch; and a slice is read faster than rows from everywhere.
    Arguments as for `bl.epochs`; `size` must divide the number of examples. Rows that are sorted (by
    class, say) make batches unlike each other: shuffle them once before.
    """
    return _minibatches(Blocks, data, size, seed)


def as_stream(data: Any) -> Stream:
    """A stream as it is; a `Batch` or `None` as the full batch at every step."""
    if data is None:
        return FullBatch(None)
    if isinstance(data, Batch):
        inner, outer = as_arrays(data.inner, "data.inner"), as_arrays(data.outer, "data.outer")
        return FullBatch(
            replace(data, inner=inner, outer=outer, shared=as_arrays(data.shared, "data.shared"))
        )
    if isinstance(data, Stream):
        return data
    raise TypeError(
        f"data must be a bl.Batch or a stream of them, not {type(data).__name__}: "
        "pass bl.Batch(inner=..., outer=...), bl.epochs(...) or bl.iid(...)"
    )


def _minibatches(
    sampler: Callable[..., Any], data: Batch, size: int | Batch | Levels, seed: Any
) -> Minibatches:
    if not isinstance(data, Batch):
        raise TypeError(
            f"data must be a bl.Batch, not {type(data).__name__}: pass bl.Batch(inner=..., outer=...)"
        )
    if data.key is not None or data.state is not None or any(rows is not None for rows in data.rows):
        raise ValueError(
            "the data of minibatches are arrays alone, and their rows, key and state come from the loop: leave these "
            "out of the bl.Batch (rows of your own can be one more array of the data)"
        )
    seed = check_traced_seed(seed)
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
    return Minibatches(Batch(*arrays, shared=as_arrays(data.shared, "data.shared")), Levels(*samplers))


def _sampler(sampler: Callable[..., Any], arrays: PyTree, size: int, key: jax.Array, level: str) -> Any:
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
