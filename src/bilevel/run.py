"""The host driver: the compiled loop in chunks, with a trace, probes, stopping and outcomes around it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from bilevel.checks import check_batch, check_count, variables
from bilevel.chunks import Chunks, chunk_length, non_finite
from bilevel.feeds import as_feed
from bilevel.log import Log
from bilevel.progress import progress_bar
from bilevel.scan import Record, nothing, scalars, warm_up
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.rule import check_positive
from bilevel.status import Status, completed, converged, diverged, exhausted, interrupted

PyTree = Any


@dataclass(frozen=True)
class Result:
    """Where a run ended, how, and what it saw on the way."""

    x: PyTree
    y: PyTree
    status: Status
    steps: int  # taken in all, those of the run it resumed included
    trace: dict[str, np.ndarray]  # by name, one row per step
    probes: dict[str, np.ndarray]  # what `probe` returned, one row per call, and "step"
    state: Any = field(repr=False)  # the solver's own; `resume=result` goes on from it
    seconds: float = 0.0  # of this run alone

    def __repr__(self) -> str:
        value = f"outer_value={self.trace['outer_value'][-1]:.6g}, " if self.steps else ""
        return f"Result({self.status.code} after {self.steps} steps, {value}{self.seconds:.1f} s)"


def run(
    solver: Solver,
    x0: PyTree = None,
    y0: PyTree = None,
    *,
    steps: int,
    data: Any = None,
    warmup: int = 0,
    every: int | None = None,
    probe: Callable[[Any, Info], dict[str, Any]] | None = None,
    record: Record | None = None,
    tol: float | None = None,
    progress: bool = False,
    resume: Result | None = None,
) -> Result:
    """Runs `solver` for `steps` steps from (x0, y0), and says how it went.

    Args:
        solver: any solver, for instance `bl.aid(...)`.
        x0, y0: where to start; left out when resuming.
        steps: how many steps to take (when resuming: how many more).
        data: a `Batch` seen whole at every step, a stream such as `bl.epochs(...)`, or any Python iterable
            of batches.
        warmup: steps on y alone at x0 before the first (the paper's initialisation lemmas).
        every: steps per compiled chunk. Between chunks the host probes, draws the progress bar, tests `tol`
            and can be interrupted. Left out, a chunk is about a quarter of a second of work.
        probe: `(state, info) -> dict of numbers`, called on the host after every chunk.
        record: `(state, info) -> dict of arrays` to keep of every step, compiled, besides the scalars that
            the trace always has ("outer_value", "hypergradient_norm" and the solver's own metrics).
        tol: stop when the estimated hypergradient's norm is at most this at the end of a chunk.
        progress: draw a progress bar if standard error is a terminal.
        resume: the result of an earlier run of the same solver, to go on from bit for bit.

    A run that diverges returns the last finite state; Ctrl-C returns what there is so far.
    """
    steps, warmup = check_count(steps, "steps"), check_count(warmup, "warmup", least=0)
    every = None if every is None else check_count(every, "every")
    if tol is not None:
        check_positive(tol, "tolerance tol")
    if resume is None and (x0 is None or y0 is None):
        raise ValueError("a run needs a start: pass x0 and y0, or resume=result of an earlier run")
    if resume is not None and not (x0 is None and y0 is None and warmup == 0):
        raise ValueError("a resumed run starts where the other ended: leave x0, y0 and warmup out")

    began = time.perf_counter()
    step = 0 if resume is None else resume.steps
    stop = step + steps
    feed = as_feed(data, solver.problem, step)
    first = feed.peek()
    state = _start(solver, x0, y0, first) if resume is None else resume.state
    if warmup:
        for piece in feed.take(warmup):
            state = _warm_up(solver, state, piece.stream, piece.steps)
    length = every or chunk_length(solver, state, first, steps)
    if tol is not None and every is None:
        length = min(length, -(-steps // 50))  # so that stopping can pay
    chunks = Chunks(solver, feed, _recorder(record), nothing if probe is None else _everything)
    log, status = Log.after(resume), None

    with progress_bar(solver.name, step, stop, progress) as report:
        try:
            while step < stop and status is None:
                wanted = min(length, stop - step)
                chunk = chunks.advance(state, wanted)
                if non_finite(solver, chunk.state):
                    chunk, broken = chunks.replay(state)
                    status = diverged(step + chunk.steps, broken)
                elif chunk.steps < wanted:
                    status = exhausted(step + chunk.steps, stop)
                state, step = chunk.state, step + chunk.steps
                if chunk.steps == 0:
                    break
                log.add(chunk.trace)
                norm = float(chunk.trace["hypergradient_norm"][-1])
                report(step, float(chunk.trace["outer_value"][-1]), norm)
                if probe is not None:
                    log.add_probe(step, probe(state, chunk.info))
                if status is None and tol is not None and norm <= tol:
                    status = converged(step, norm, tol)
        except KeyboardInterrupt:
            status = interrupted(step)
    return Result(
        x=state.x,
        y=state.y,
        status=status or completed(stop),
        steps=step,
        trace=log.trace,
        probes=log.probes,
        state=state,
        seconds=time.perf_counter() - began,
    )


def _start(solver: Solver, x0: PyTree, y0: PyTree, batch: Any) -> Any:
    check_batch(solver.problem, batch)
    return _init(solver, *variables(x0, y0), batch)


@partial(jax.jit, static_argnames="solver")
def _init(solver: Solver, x: PyTree, y: PyTree, batch: Any) -> Any:
    return solver.init(x, y, batch)


@partial(jax.jit, static_argnames=("solver", "steps"))
def _warm_up(solver: Solver, state: Any, data: Any, steps: int) -> Any:
    return warm_up(solver, state, data, steps=steps)


def _everything(info: Info) -> Info:
    return info


def _recorder(record: Record | None) -> Record:
    return scalars if record is None else lambda state, info: scalars(state, info) | record(state, info)
