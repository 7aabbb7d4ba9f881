"""Data sources of a run: memory, with many steps per compiled call, or a Python loader, with one."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from bilevel.batch import Batch
from bilevel.loop.data.loader_buffer import Loader
from bilevel.loop.data.streams import Stream, as_stream
from bilevel.loop.errors import Failure
from bilevel.loop.result import Result
from bilevel.solvers.base import Solver


class Memory:
    """Source of data in memory, with the interface of `Loader`: one compiled call takes any number of steps."""

    ended = False
    movable = True  # to the position of an earlier run

    def __init__(self, stream: Stream):
        self.stream: Stream = stream

    def place(self, place: Any, stream: Any) -> None:
        """Store the stream after its arrays were placed."""
        self.stream = stream

    def peek(self) -> Stream:
        return self.stream

    first = peek

    def blamed(self, failure: Failure | None) -> Failure | None:
        return failure

    def again(self, taken: list[Any], index: int, count: int) -> tuple[Stream, int]:
        return self.stream, count

    def seen(self, taken: list[Any]) -> Any:
        return self.stream

    def give_back(self, taken: list[Any]) -> None:
        """Do nothing: the cursor is part of the run, which was restored."""

    def asked_ahead(self, steps: int, prefetch: int | None) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self) -> Any:
        """Return the samplers' keys. Another seed would draw the rows in another order."""
        samplers = [s for s in getattr(self.stream, "samplers", ()) if s is not None]
        return tuple(tuple(np.asarray(jax.random.key_data(s.key)).ravel().tolist()) for s in samplers)


def source_of(data: Any, solver: Solver, resume: Result | None) -> Memory | Loader:
    """Return the data source of a run, or of one that resumes from `resume`."""
    in_memory = data is None or isinstance(data, Batch | Stream | dict | str | jax.Array | np.ndarray)
    if not in_memory and isinstance(data, Iterable):
        return Loader(data, solver) if resume is None else Loader.resumed(data, solver, resume.feed)
    source = Memory(as_stream(data))
    if resume is not None and type(resume.feed) is tuple and resume.feed != source.mark():
        raise ValueError(
            "resume= is of another run: its data were drawn with another seed. To begin a new run from there, pass "
            "x0=result.x, y0=result.y"
        )
    return source
