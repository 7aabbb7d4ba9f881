"""A run's steps in compiled chunks: how long one is, and what to do with one that broke."""

from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.checks import signature
from bilevel.feeds import Feed, Piece
from bilevel.log import join
from bilevel.operations import operations
from bilevel.scan import Record, advance
from bilevel.solvers.base import Info, Solver
from bilevel.streams import Stream

PyTree = Any

SECONDS = 0.25  # of work between two looks at the terminal
# Guesses of (operations per second, least seconds per step) that chunk lengths are derived from. A wrong
# guess costs a sluggish progress bar, never a wrong result.
SPEED = {"cpu": (1e11, 1e-6), "gpu": (3e13, 5e-5), "tpu": (3e13, 5e-5)}


class Chunk(NamedTuple):
    """Some steps of a run."""

    state: Any
    info: PyTree  # the last step's Info, or () where nobody wants it
    trace: dict[str, np.ndarray]
    steps: int


class Chunks:
    """Advances a solver's state, and keeps what it takes to replay the last chunk step by step."""

    def __init__(self, solver: Solver, feed: Feed, record: Record, last: Any):
        self.solver, self.feed, self.record, self.last = solver, feed, record, last
        self._pieces: list[Piece] = []

    def advance(self, state: Any, steps: int) -> Chunk:
        """At most `steps` steps; fewer only where the data end."""
        self._pieces, traces, info = [], [], ()
        for piece in self.feed.take(steps):
            self._pieces.append(piece)
            state, cursor, trace, info = _steps(self.solver, state, *piece, self.record, self.last)
            self.feed.moved(cursor)
            traces.append(trace)
        return Chunk(state, info, _join(traces), sum(piece.steps for piece in self._pieces))

    def replay(self, state: Any) -> tuple[Chunk, list[str]]:
        """The last chunk again, from where it began to its last finite state; and what became non-finite."""
        traces, info = [], ()
        for piece in self._pieces:
            cursor = piece.cursor
            for _ in range(piece.steps):
                after, cursor, trace, new = _steps(
                    self.solver, state, piece.stream, cursor, 1, self.record, self.last
                )
                if broken := non_finite(self.solver, after):
                    return Chunk(state, info, _join(traces), len(traces)), broken
                state, info = after, new
                traces.append(trace)
        raise RuntimeError("a chunk that ended non-finite stayed finite when replayed: the step is not pure")


def non_finite(solver: Solver, state: Any) -> list[str]:
    """The names of the state's variables that are not finite."""
    verdicts = jax.device_get(_finite(tuple(getattr(state, name) for name in solver.variables)))
    return [name for name, fine in zip(solver.variables, verdicts, strict=True) if not fine]


def chunk_length(solver: Solver, state: Any, batch: Any, steps: int) -> int:
    """About `SECONDS` of steps, by a count of a step's operations; a divisor of `steps` if one is near."""
    per_second, least = SPEED.get(jax.default_backend(), SPEED["cpu"])
    seconds = max(_operations(solver, state, batch) / per_second, least)
    count = max(1, round(steps * seconds / SECONDS))  # of chunks
    even = next((n for n in range(count, min(2 * count, steps) + 1) if steps % n == 0), count)
    return -(-steps // even)


def _operations(solver: Solver, state: Any, batch: Any) -> float:
    known = _known.setdefault(solver, {})
    shapes = signature((state, batch))
    if shapes not in known:
        known[shapes] = operations(jax.make_jaxpr(partial(_step, solver))(state, batch).jaxpr)
    return known[shapes]


_known: WeakKeyDictionary[Solver, dict] = WeakKeyDictionary()


@partial(jax.jit, static_argnames="solver")
def _step(solver: Solver, state: Any, batch: Any) -> tuple[Any, Info]:
    # Its own jit, so that chunks of different lengths share one trace of the user's functions.
    return solver.step(state, batch)


@partial(jax.jit, static_argnames=("solver", "steps", "record", "last"))
def _steps(solver: Solver, state: Any, stream: Stream, cursor: PyTree, steps: int, record: Record, last: Any):
    return advance(partial(_step, solver), state, stream, cursor, steps, record, last)


@jax.jit
def _finite(trees: tuple) -> tuple:
    return tuple(
        jnp.all(jnp.array([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(tree)])) for tree in trees
    )


def _join(traces: list[dict]) -> dict[str, np.ndarray]:
    return join(jax.device_get(traces))
