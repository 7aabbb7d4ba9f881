"""Data sources of a run: memory, with many steps per compiled call, or a Python loader, with one."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from bilevel.batch import Batch
from bilevel.loop.data.loader_buffer import Feed
from bilevel.loop.data.streams import Stream, as_stream
from bilevel.loop.errors import Failure, RunError
from bilevel.loop.result import Result
from bilevel.solvers.base import Solver


class Memory:
    """Source of data in memory: one compiled call takes any number of steps."""

    ended = False
    movable = True  # to the position of an earlier run

    def __init__(self, stream: Stream):
        self.stream: Stream = stream

    def place(self, place: Any, stream: Any) -> None:
        """Store the stream after its arrays were placed."""
        self.stream = stream

    def first(self) -> Stream:
        return self.stream

    def blamed(self, failure: Failure | None) -> Failure | None:
        return failure

    def peek(self) -> Stream:
        return self.stream

    def again(self, taken: list[Any], index: int, count: int) -> tuple[Stream, int]:
        return self.stream, count

    def seen(self, taken: list[Any]) -> Any:
        return self.stream

    def give_back(self, taken: list[Any]) -> None:
        """Do nothing: the cursor is part of the run, which was restored."""

    def take(self) -> None:
        return None

    def asked_ahead(self, steps: int, prefetch: int | None) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self) -> Any:
        """Return the samplers' keys. Another seed would draw the rows in another order."""
        samplers = [s for s in getattr(self.stream, "samplers", ()) if s is not None]
        return tuple(tuple(np.asarray(jax.random.key_data(s.key)).ravel().tolist()) for s in samplers)


class Loader:
    """Source of data from Python code: one compiled call per batch."""

    stream = None

    def __init__(self, data: Iterable[Any], solver: Solver, resume: Result | None):
        self.feed: Feed = Feed(data, solver) if resume is None else Feed.resumed(data, solver, resume.feed)

    def place(self, place: Any, stream: Any) -> None:
        """Use `place`, if given, for each further batch."""
        if place is not None:
            self.feed.place_at(place)

    @property
    def ended(self) -> bool:
        return self.feed.ended

    @property
    def movable(self) -> bool:
        """Return whether another process can move the loader to this position."""
        return self.feed.movable

    def blamed(self, failure: Failure | None) -> Failure | None:
        """Return the failure, named after the placement of the batch if that raised."""
        from bilevel.loop.devices.mesh_spec import CannotBeSplit

        if failure is not None and isinstance(failure.error, CannotBeSplit):
            return failure.blamed("laying out the loader's batch")
        return failure

    def first(self) -> Any:
        """Return the first step's data, or `None` if there are none. Raise the caller's errors unchanged."""
        try:
            return self.feed.peek()
        except (TypeError, ValueError):
            raise
        except Exception as error:
            raise RunError(
                f"the loader raised {type(error).__name__} before the first step: {error}", None
            ) from error

    def peek(self) -> Any:
        return self.feed.peek()

    def take(self) -> Any:
        return self.feed.take()

    def asked_ahead(self, steps: int, prefetch: int | None) -> AbstractContextManager[Any]:
        return self.feed.asked_ahead(steps, prefetch)

    def again(self, taken: list[Any], index: int, count: int) -> tuple[Any, int]:
        host, _ = taken[min(index, len(taken) - 1)]  # after the last known batch, use it again
        return self.feed.place(host), 1

    def seen(self, taken: list[Any]) -> Any:
        return [given for given, _ in taken]

    def give_back(self, taken: list[Any]) -> None:
        self.feed.give_back(taken)

    def mark(self) -> Any:
        return self.feed.mark()


def is_loader(data: Any) -> bool:
    in_memory = data is None or isinstance(data, Batch | Stream | dict | str | jax.Array | np.ndarray)
    return not in_memory and isinstance(data, Iterable)


def source_of(data: Any, solver: Solver, resume: Result | None) -> Memory | Loader:
    """Return the data source of a run, or of one that resumes from `resume`."""
    if is_loader(data):
        return Loader(data, solver, resume)
    source = Memory(as_stream(data))
    if resume is not None and type(resume.feed) is tuple and resume.feed != source.mark():
        raise ValueError(
            "resume= is of another run: its data were drawn with another seed. To begin a new run from there, pass "
            "x0=result.x, y0=result.y"
        )
    return source
