"""Stage that takes steps: one compiled call for many, or one call for every batch of a loader."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel.loop.data.streams import draw
from bilevel.loop.errors import Failure, caught
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.policies import lost
from bilevel.loop.program import Fit
from bilevel.loop.state import dress
from bilevel.loop.trace import Columns
from bilevel.solvers.base import explained as explained_error
from bilevel.types import PyTree

SECONDS = 0.25  # of work per chunk
GROWTH = 64  # largest growth between chunks: a first guess may be far off
IN_FLIGHT = 2  # steps on a loader's batches by which the host may lead the device


class Pace:
    """Lengths of chunks, from the clock: short ones first, then longer until one takes about `SECONDS`."""

    def __init__(self, seconds_per_step: float | None, every: int | None = None):
        self.every = every
        self.seconds_per_step = seconds_per_step
        self._last = 1 if seconds_per_step is None else None

    def steps(self, left: int, at: int = 0) -> int:
        """Return the length of the chunk at step `at`. With `every`, it ends at the next multiple."""
        if self.every is not None:
            return min(self.every - at % self.every, left)
        if self.seconds_per_step is None:
            return min(1, left)
        wanted = max(1, round(SECONDS / max(self.seconds_per_step, 1e-9)))
        if self._last is not None:
            wanted = min(wanted, GROWTH * self._last)
        return min(wanted, left)

    def took(self, steps: int, seconds: float, compiled: bool) -> None:
        """Record the time of a chunk. A time with compilation does not predict the next."""
        self._last = max(steps, 1)
        if not compiled:
            self.seconds_per_step = seconds / max(steps, 1)


class Chunk(NamedTuple):
    """Steps of one chunk."""

    progress: Progress  # its run is after these steps, its step is still before them
    rows: Columns
    done: int
    flags: Any  # whether each array of the run is finite


def take_chunk(plan: Plan, progress: Progress, fit: Fit, wanted: int) -> Chunk | Failure:
    """Take at most `wanted` steps. Stop early at the end of the data, an error, a time limit or Ctrl-C."""
    try:
        return (
            _at_once(plan, progress, fit, wanted)
            if plan.at_once
            else _one_by_one(plan, progress, fit, wanted)
        )
    except Exception as error:  # from the objectives, during tracing or execution
        return plan.team.named(Failure("an objective", _explained(plan, progress, error)))


def _at_once(plan: Plan, progress: Progress, fit: Fit, wanted: int) -> Chunk:
    method = progress.method
    run, rows, info, flags = plan.calls(method).chunk(
        method.leaves, progress.run, plan.source.stream, fit.blank, wanted, plan.keep_info
    )
    rows, flags = _on_host((rows, flags))
    return Chunk(progress.after(run, info), _first(rows, wanted), wanted, flags)


def _one_by_one(plan: Plan, progress: Progress, fit: Fit, wanted: int) -> Chunk | Failure:
    """Take steps by a compiled call each. The loader works in parallel with the device."""
    method, source = progress.method, plan.source
    one, rows, info, failure = plan.calls(method).one, fit.rows(), None, None
    run, done, flying, ended = plan.storage.stored(progress.run), 0, [], False
    paced = plan.every is not None or source.stream is not None  # else limited by the loader's time
    deadline = np.inf if paced else time.perf_counter() + SECONDS
    while done < wanted and not plan.interrupts.asked and time.perf_counter() < deadline:
        given, failure = next_batch(plan)
        if given is None:
            ended = True
            break
        info = None  # free the earlier Info before the next step
        moved, raised = caught("an objective", one, method.leaves, run, given, rows, done, plan.keep_info)
        if raised is not None:  # raised by tracing or dispatch: the earlier steps are complete
            explained = _explained(plan, progress.after(run, None), raised.error, given)
            failure = raised.blamed("an objective", explained)
            del explained
            plan.source.give_back(plan.snapshots.drop(1))
            break
        run, rows, info = moved
        del moved
        done += 1
        flying.append(info.outer_value)
        if len(flying) > IN_FLIGHT:
            jax.block_until_ready(flying.pop(0))
    if failure is not None and lost(rows):  # lost with the steps of these rows
        return failure
    if failure is None and not ended and progress.step + done < plan.total:
        failure = _look_ahead(plan)
    rows, after = _on_host(rows), progress.after(run, info, failure)
    return Chunk(after, _first(rows, done), done, plan.watch.look(plan.storage.fetched(run)))


def _explained(plan: Plan, progress: Progress, error: Exception, given: Any = None) -> Exception:
    """Return the error, or one about the derivative that an objective lacks."""
    given = plan.source.stream if given is None else given
    if given is None or not progress.is_whole:
        return error
    solver, run = progress.method.solver, progress.run
    _, batch = draw(given, run.cursor, solver.draws, solver.traits.same_rows)
    return explained_error(error, solver, run.solver, dress(solver, run, batch))


def next_batch(plan: Plan) -> tuple[Any, Failure | None]:
    """Return the data of the next step, or `None`, and the loader's error."""
    if plan.source.stream is not None:
        return plan.source.stream, None
    taken, failure = caught("the loader", plan.source.take, interruptible=True)
    if failure is not None and failure.is_interrupt:  # within the loader: keep the steps so far
        failure.forget()
        plan.interrupts.ask()
        return None, None
    if taken is None:
        return None, plan.source.blamed(failure)
    given, kept = taken
    plan.snapshots.taken.append(kept)
    return given, None


def _look_ahead(plan: Plan) -> Failure | None:
    _, failure = caught("the loader", plan.source.peek, interruptible=plan.team.several)
    if failure is not None and failure.is_interrupt:
        failure.forget()
        plan.interrupts.hear()  # all processes will receive it
        return None
    return plan.source.blamed(failure)


def _first(rows: PyTree, count: int) -> PyTree:
    """Return copies of the first rows: a view would keep the whole, much larger buffer."""
    return jax.tree.map(lambda a: a[:count].copy(), rows)


def _on_host(tree: PyTree) -> PyTree:
    """Return the tree as NumPy arrays, with all transfers at once in case memory is slow."""
    return jax.device_get(tree) if jax.default_backend() != "cpu" else jax.tree.map(np.asarray, tree)
