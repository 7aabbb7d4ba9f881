"""Compiled functions of a solver: its start, its warm-up and its loop.

Step sizes, data, states and the number of steps are arguments, so one program serves all of them. The problem
keeps the programs, by their structure, and releases them when it is deleted.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bilevel.identity import Static
from bilevel.loop.data.streams import Stream
from bilevel.loop.finite import health
from bilevel.loop.scan import Record, advance_into, put_row, recorded, scalars, step_and_record, warm_step
from bilevel.loop.state import RunState, start
from bilevel.memory import Tracing
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.optax_rules import flattened
from bilevel.types import PyTree

MOST_SHAPES = 16  # compiled shapes per program
ROWS, MANY_ROWS, MOST_ROWS = 2**10, 2**16, 2**20  # rows of the trace per compiled call
LENGTHS = {ROWS: ROWS, 2**14: 2**14, 4 * MANY_ROWS: MANY_ROWS}  # steps of a run, and the rows of its calls
SMALL = 2**20  # bytes of state and data below which memory does not matter
SHARE = 100  # above `SMALL`, more than `ROWS` rows take at most 1/SHARE of these bytes
BLOCK, SHORT_STEPS = (
    32,
    32 * 2**20,
)  # steps per block; bytes of state and data of a short step
LONG_STEPS = (
    128 * 2**20
)  # bytes of state above which every step is a separate call. Compilers optimize a step with inner
# loops, such as over the layers of a model, less well inside another loop (9 % slower on an H200).
ROW_BYTES = 32 * 2**20  # bytes for the rows of a user's record


def block_length(arguments: PyTree) -> int:
    """Return the number of steps per block: `BLOCK` for short steps on an accelerator, else 1.

    An accelerator asks the host before every iteration of a loop of unknown length, which takes about 15 µs.
    Long steps need no blocks, which would compile the step twice. The size of the arguments decides.
    """
    return BLOCK if jax.default_backend() != "cpu" and size(arguments) <= SHORT_STEPS else 1


def size(tree: PyTree) -> int:
    """Return the bytes of the arrays of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


class Calls(NamedTuple):
    """Compiled functions that advance a run."""

    one: Any
    chunk: Any
    warm_up: Any


class Program:
    """Compiled functions of one solver structure and one record. Each takes the solver's leaves first."""

    def __init__(self, structure: Any, record: Record | None, offload: bool = False, places: Any = None):
        # A closure, not the bound method: the garbage collector cannot follow references through the latter.
        solver_of = lambda leaves: structure.unflatten(leaves)
        keep = keeping(record)
        hold, everywhere = (places.hold, places.hold_everywhere) if places else (_as_it_is, _as_it_is)

        tracing = Tracing()

        @tracing.jit  # jitted, so that all functions below share one trace of the user's functions
        def step(leaves: list[Any], run: RunState, stream: Stream):
            solver = solver_of(leaves)
            if offload:
                from bilevel.loop.devices.offload import postponed

                solver, run = postponed(solver, run, run.x)
            after, info, row = step_and_record(solver, run, stream, keep)
            return hold(after), info, everywhere(row)

        def told(leaves: list[Any], run: RunState, stream: Stream, whole: bool):
            after, info, row = step(leaves, run, stream)
            return after, info if whole else brief(info), row

        def one(leaves: list[Any], run: RunState, stream: Stream, rows: PyTree, at: Any, whole: bool = False):
            after, info, row = told(leaves, run, stream, whole)
            return after, everywhere(put_row(rows, row, at)), info

        def chunk(
            leaves: list[Any], run: RunState, stream: Stream, blank: "Blank", count: Any, whole: bool = False
        ):
            block = block_length((run, stream))
            after, rows, info = advance_into(
                lambda run: told(leaves, run, stream, whole), run, blank.rows(), count, block
            )
            after = hold(after)  # a loop may leave its result with another sharding than its last step
            return after, everywhere(rows), info, everywhere(health(solver_of(leaves), after))

        def warm_up(leaves: list[Any], run: RunState, stream: Stream, count: Any) -> RunState:
            step = lambda _, run: hold(warm_step(solver_of(leaves), run, stream))
            return hold(lax.fori_loop(0, count, step, run))

        def begin(
            leaves: list[Any], x: PyTree, y: PyTree, stream: Stream, seed: Any, model: PyTree
        ) -> RunState:
            begun = start(solver_of(leaves), x, y, stream, seed=seed, model_state=model)
            return hold(jax.tree.map(jnp.copy, begun))  # copied: the caller keeps its arrays

        self._start = tracing.jit(begin)
        # A loader's batches come one by one. The host need not wait for this straight-line code, unlike for a
        # loop.
        self.keeping: Calls = Calls(
            tracing.jit(one, static_argnames="whole", donate_argnames="rows"),
            tracing.jit(chunk, static_argnames=("blank", "whole")),
            tracing.jit(warm_up),
        )
        self.donating: Calls = Calls(
            tracing.jit(one, static_argnames="whole", donate_argnames=("run", "rows")),
            tracing.jit(chunk, static_argnames=("blank", "whole"), donate_argnames="run"),
            tracing.jit(warm_up, donate_argnames="run"),
        )
        self._compiled = (step, self._start, *self.keeping, *self.donating)
        self._check = lambda *of_a_step: None
        if offload:
            from bilevel.loop.devices.offload import check_offloadable, in_two

            self._check = lambda leaves, run, stream: check_offloadable(
                solver_of(leaves), run, lambda solver, run: step_and_record(solver, run, stream, keep)
            )
            update = lambda leaves, x, gradient, memory: solver_of(leaves).outer.update(gradient, memory, x)
            self.keeping = Calls(*in_two(*self.keeping, tracing.jit(update)))
            self.donating = Calls(*in_two(*self.donating, tracing.jit(update, donate_argnums=(1, 3))))
        self._step, self._fits, self.places = step, {}, places
        self._tracing = tracing

    def start(self, leaves: list[Any], *arguments: Any) -> RunState:
        """Return the start of a run from x, y, a stream, a seed and the model's state."""
        self._refresh(jax.tree.structure(arguments))
        return self._start(leaves, *arguments)

    def fit(self, leaves: list[Any], run: RunState, stream: Stream, steps: int) -> "Fit":
        """Return the data of this program for runs of these shapes."""
        arrays, structure = jax.tree.flatten((run, stream))
        self._refresh(structure)
        key = most_rows(steps), structure, *((a.shape, a.dtype) for a in arrays)
        if key not in self._fits:
            if len(self._fits) >= MOST_SHAPES:
                self._forget()
            self._tracing.run(self._check, leaves, run, stream)
            row = jax.eval_shape(self._step, leaves, run, stream)[2]
            self._fits[key] = Fit(size(run), row, rows_of(row, steps, size((run, stream))), self.places)
        return self._fits[key]

    def _refresh(self, structure: Any) -> None:
        if self._tracing.refresh(structure):
            self._forget()

    def _forget(self) -> None:
        """Release compiled code: a loader may return batches of ever new shapes."""
        self._fits.clear()
        for compiled in self._compiled:
            compiled.clear_cache()


@dataclass(frozen=True)
class Blank:
    """Shape of an empty piece of trace."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]  # (shape, dtype) of one row
    count: int

    def rows(self) -> PyTree:
        return self.structure.unflatten(
            [jnp.zeros((self.count, *shape), dtype) for shape, dtype in self.leaves]
        )


def most_rows(steps: int) -> int:
    """Return the number of rows per call in a run of this length. There are few, since each is compiled."""
    return next((rows for longest, rows in LENGTHS.items() if steps <= longest), MOST_ROWS)


def rows_of(row: PyTree, steps: int, arguments: int) -> int:
    """Return how many rows of the trace a call can fill, given the bytes of its arguments."""
    most, count = ROW_BYTES if arguments <= SMALL else arguments // SHARE, most_rows(steps)
    while count > ROWS and count * size(row) > most:
        count //= 2
    while count > 1 and count * size(row) > ROW_BYTES:
        count //= 2
    return count


class Fit:
    """Program for arguments of certain shapes: empty rows for its trace, and the latest time per step."""

    bytes: int  # of the run
    row: PyTree  # shapes of one row of the trace
    count: int  # the number of rows of a chunk
    blank: "Blank"
    rows: Any  # makes empty rows
    compiled: bool

    def __init__(self, size_of_run: int, row: PyTree, count: int, places: Any = None):
        self.bytes = size_of_run
        leaves, structure = jax.tree.flatten(row)
        self.row, self.count = row, count
        self.blank = Blank(structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves), count)
        self.rows = jax.jit(self.blank.rows, out_shardings=places.everywhere if places else None)
        self.compiled = False
        self.seconds: float | None = None  # seconds per step, after a chunk that ran without compilation

    def timed(self, seconds: float | None) -> None:
        """Note that the program is compiled, and its seconds per step if known."""
        self.compiled, self.seconds = True, seconds


def program_of(
    solver: Solver,
    record: Record | None = None,
    offload: bool = False,
    places: Any = None,
    shapes: Any = None,
) -> tuple[Program, list[Any]]:
    """Return the solver's program for runs with these shapes and placement, and the solver's leaves."""
    leaves, structure, functions = flattened(solver)
    make = lambda: Program(structure, record, offload, places)
    key, reads = (structure, Static(record), offload, places, shapes), (functions, record)
    return solver.problem.kept("programs", key, reads, make), leaves


def _as_it_is(tree: Any) -> Any:
    return tree


def brief(info: Info) -> Info:
    """Return the info without its trees, which are as large as x and y."""
    return Info(info.outer_value, None, None, info.metrics)


def keeping(record: Record | None) -> Record:
    """Return a record of the trace's scalars and the user's record."""
    return scalars if record is None else partial(_both, record)


def _both(record: Record, state: Any, info: Any, batch: Any) -> dict[str, Any]:
    kept = recorded(record, state, info, batch)
    if not isinstance(kept, dict):
        raise TypeError(f"record must return a dict of arrays by name, not {type(kept).__name__}")
    ours = scalars(state, info)
    if both := sorted(ours.keys() & kept.keys()):
        raise ValueError(f"record returned {both[0]!r}, a name that the trace already has: choose another")
    return ours | kept
