"""The host's side of the data: what one compiled call takes from a stream, or from a Python iterator."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from bilevel.checks import check_batch
from bilevel.problem import Batch, Problem
from bilevel.streams import FullBatch, Stream, as_stream

PyTree = Any


class Piece(NamedTuple):
    """Steps that one compiled call takes, from a cursor of a stream on."""

    stream: Stream
    cursor: PyTree
    steps: int


@runtime_checkable
class Feed(Protocol):
    def peek(self) -> Batch | None:
        """The first batch, without taking it."""
        ...

    def take(self, steps: int) -> Iterator[Piece]:
        """Pieces that add up to `steps`, or to fewer where the data end."""
        ...

    def moved(self, cursor: PyTree) -> None:
        """The piece taken last was used, and left the stream at `cursor`."""
        ...


class Streamed:
    """A stream in memory: any number of steps are one piece."""

    def __init__(self, stream: Stream, start: int):
        self.stream = jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf), stream
        )
        self.cursor = stream.start(start)

    def peek(self) -> Batch | None:
        return self.stream.next(self.cursor)[1]

    def take(self, steps: int) -> Iterator[Piece]:
        yield Piece(self.stream, self.cursor, steps)

    def moved(self, cursor: PyTree) -> None:
        self.cursor = cursor


class Iterated:
    """Any Python iterable of batches: every batch is a piece, so their shapes may differ."""

    def __init__(self, batches: Iterable[Batch], problem: Problem):
        self.batches, self.problem = iter(batches), problem

    def peek(self) -> Batch:
        first = list(islice(self.batches, 1))
        if not first:
            raise ValueError("data is an iterator without a single batch: give one that is not used up")
        self.batches = chain(first, self.batches)
        return first[0]

    def take(self, steps: int) -> Iterator[Piece]:
        for batch in islice(self.batches, steps):
            check_batch(self.problem, batch)
            yield Piece(FullBatch(batch), (), 1)

    def moved(self, cursor: PyTree) -> None:
        pass


def as_feed(data: Any, problem: Problem, start: int) -> Feed:
    """Streams and batches feed themselves; any other iterable is asked for a batch per step."""
    in_memory = data is None or isinstance(data, Batch | Stream)
    if not in_memory and isinstance(data, Iterable) and not isinstance(data, dict | str | jax.Array):
        return Iterated(data, problem)
    return Streamed(as_stream(data), start)
