"""Streams of batches. A stream is a pytree: its arrays are arguments of compiled programs, not constants.

`start(step) -> cursor` and `next(cursor) -> (cursor, batch)` are pure. The cursor is a function of the step
number, so a resumed run sees the same batches as an unbroken run.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from bilevel.arrays import as_arrays
from bilevel.batch import Batch, Draws, Levels
from bilevel.checks import check_count, check_traced_seed
from bilevel.loop.data.samplers import Blocks, Independent, Shuffled
from bilevel.loop.devices.mesh_spec import size_of
from bilevel.types import PyTree

UNKNOWN = Batch(whole=Batch())  # data that are not in memory as a whole


@runtime_checkable
class Stream(Protocol):
    """Source of batches of `bl.scan` and `bl.run`."""

    def start(self, step: int) -> PyTree: ...
    def next(self, cursor: Any) -> tuple[Any, Any]: ...


def draw(
    stream: Stream, cursor: PyTree, count: int, paired: bool = False
) -> tuple[PyTree, Batch | Draws | None]:
    """Return the cursor after `count` independent batches, and the batches: one as it is, several as `Draws`.

    With `paired`, both levels get the same rows.
    """
    if paired and isinstance(stream, Minibatches):
        stream, cursor = stream.paired(cursor)
    if count == 1 or isinstance(stream, Given):
        return stream.next(cursor)
    if isinstance(stream, FullBatch):  # every draw has the same data and a separate key
        cursor, batch = stream.next(cursor)
        return cursor, Draws(Batch(), Batch() if batch is None else batch)
    if isinstance(stream, Minibatches):
        return stream.draws(cursor, count)

    def one(cursor: PyTree, _: None) -> tuple[PyTree, Batch]:
        cursor, batch = stream.next(cursor)
        return cursor, replace(batch, whole=None)  # stacked draws would hold copies of it

    cursor, stacked = lax.scan(one, cursor, length=count)
    return cursor, Draws(stacked, UNKNOWN)


class FullBatch(eqx.Module):
    """Stream of all the data at every step."""

    data: Batch | None = None

    def start(self, step: int) -> tuple[Any, ...]:
        return ()

    def next(self, cursor: tuple[Any, ...]) -> tuple[tuple[Any, ...], Batch | None]:
        return cursor, self.data if self.data is None else _with_rows(self.data)


class Given(eqx.Module):
    """Batch that a loader returned for one step."""

    data: Batch | Draws

    def start(self, step: int) -> tuple[Any, ...]:
        return ()

    def next(self, cursor: tuple[Any, ...]) -> tuple[tuple[Any, ...], Batch | Draws]:
        part = lambda batch: replace(batch, whole=UNKNOWN.whole)
        given = self.data
        if isinstance(given, Draws):
            return cursor, replace(given, shared=part(given.shared))
        return cursor, part(given)


class Minibatches(eqx.Module):
    """Stream of minibatches with one sampler per level (`None`: all examples at every step)."""

    data: Batch
    samplers: Levels
    # How the rows of a batch are split over devices.
    split: NamedSharding | None = eqx.field(static=True, default=None)

    def start(self, step: int) -> Levels:
        return Levels(*(None if sampler is None else sampler.start(step) for sampler in self.samplers))

    def next(self, cursor: Levels) -> tuple[Levels, Batch]:
        cursor, rows = self._rows(cursor)
        batch = _with_rows(Batch(*self.read(rows), rows=rows, shared=self.data.shared))
        return cursor, replace(batch, whole=_with_rows(self.data), block=self._blocks(rows))

    def draws(self, cursor: Levels, count: int) -> tuple[Levels, Draws]:
        """Draw the row numbers of `count` batches at once. A step reads the rows when it uses them."""
        cursor, rows = lax.scan(lambda cursor, _: self._rows(cursor), cursor, length=count)
        same = self._each(lambda sampler, arrays, _: None if sampler else arrays, rows)
        shared = replace(_with_rows(Batch(*same, shared=self.data.shared)), whole=_with_rows(self.data))
        return cursor, Draws(Batch(rows=rows, block=self._blocks(rows)), shared, self)

    def read(self, rows: Levels) -> Levels:
        """Return these rows of each level, or all rows of a level without a sampler."""
        return self._each(
            lambda sampler, arrays, at: self._spread(sampler.take(arrays, at)) if sampler else arrays, rows
        )

    def _each(self, function: Callable[..., Any], rows: Levels) -> Levels:
        """Return `function(sampler, arrays, rows)` for each level; the sampler may be `None`."""
        return Levels(*map(function, self.samplers, (self.data.inner, self.data.outer), rows))

    def _spread(self, arrays: PyTree) -> PyTree:
        """Split the rows over the devices if their number is divisible."""
        if self.split is None:
            return arrays
        parts = size_of(self.split.mesh, self.split.spec[0])
        fits = lambda leaf: leaf.shape[0] % parts == 0
        return jax.tree.map(
            lambda leaf: lax.with_sharding_constraint(leaf, self.split) if fits(leaf) else leaf, arrays
        )

    def _blocks(self, rows: Levels) -> Levels:
        return self._each(lambda sampler, _, at: sampler.block(at) if sampler else None, rows)

    def paired(self, cursor: Levels) -> tuple["Minibatches", Levels]:
        """Return the same stream with the inner level's rows at both levels, and its cursor."""
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
        inner, outer = self._each(lambda sampler, _, at: sampler.next(at) if sampler else Levels(), cursor)
        return Levels(inner[0], outer[0]), Levels(inner[1], outer[1])


def _with_rows(batch: Batch) -> Batch:
    """Number the rows of a level in order if its arrays share their first axis and have no numbers yet."""
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


def epochs(data: Batch, size: int | Batch | Levels, seed: Any = 0) -> Minibatches:
    """Return shuffled epochs of minibatches from arrays in memory. Each epoch has every example exactly once.

    Args:
        data: the arrays of each level. The arrays of a level share their first axis.
        size: examples per step, or `Batch(inner=..., outer=...)`; `None` for a level means all examples.
        seed: a whole number, possibly traced. The two levels are shuffled independently. For meta-learners
            they are shuffled together, because a row of both levels is one task.
    """
    return _minibatches(Shuffled, data, size, seed)


def iid(data: Batch, size: int | Batch | Levels, seed: Any = 0) -> Minibatches:
    """Return minibatches drawn independently with replacement. The arguments are as for `bl.epochs`."""
    return _minibatches(Independent, data, size, seed)


def blocks(data: Batch, size: int | Batch | Levels, seed: Any = 0) -> Minibatches:
    """Return fixed minibatches: the rows are cut once into slices of `size`, shuffled in every epoch.

    Use these with `bl.saba`, which stores every batch. Reading a slice is also faster than reading scattered
    rows. The arguments are as for `bl.epochs`; `size` must divide the number of examples. If the rows are
    sorted (for example by class), shuffle them once before. Otherwise the batches differ from each other.
    """
    return _minibatches(Blocks, data, size, seed)


def as_stream(data: Any) -> Stream:
    """Return a stream unchanged; turn a `Batch` or `None` into the full batch at every step."""
    if data is None:
        return FullBatch(None)
    if isinstance(data, Batch):
        return FullBatch(replace(data, **_arrays_of(data)))
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
            "the data of minibatches are only arrays, and their rows, key and state come from the loop: leave these "
            "out of the bl.Batch (your own row numbers can be one more array of the data)"
        )
    keys = jax.random.split(jax.random.key(check_traced_seed(seed)), 2)
    data = Batch(**_arrays_of(data))
    arrays = Levels(data.inner, data.outer)
    if not isinstance(size, Batch | Levels):
        size = Levels(*(None if level is None else size for level in arrays))
    samplers = [
        None if wanted is None else _sampler(sampler, level, wanted, key, name)
        for level, wanted, key, name in zip(
            arrays, (size.inner, size.outer), keys, Levels._fields, strict=True
        )
    ]
    return Minibatches(data, Levels(*samplers))


def _arrays_of(data: Batch) -> dict[str, PyTree]:
    """Return the data of both levels and those that they share, as JAX arrays."""
    return {name: as_arrays(getattr(data, name), f"data.{name}") for name in ("inner", "outer", "shared")}


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
