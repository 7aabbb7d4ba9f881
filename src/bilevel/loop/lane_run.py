"""Sweep as a run: its plan, whose stages move all lanes at once, and the statuses of the lanes."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.chunks import Chunk
from bilevel.loop.data.sources import Memory
from bilevel.loop.errors import Failure, caught
from bilevel.loop.hook_runner import HookRunner
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event
from bilevel.loop.lane_program import LaneProgram
from bilevel.loop.lanes import Lanes
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.policies import NoHooks, Steady
from bilevel.loop.state import RunState
from bilevel.loop.status import Status, completed, diverged, failed
from bilevel.loop.trace import Columns, Log
from bilevel.solvers.base import Solver
from bilevel.types import PyTree


class LaneRun(NamedTuple):
    """Runs of all lanes, stacked."""

    solver_runs: RunState
    alive: jax.Array  # whether each lane is still finite
    taken: jax.Array  # the finite steps of each lane


class LaneMethod(NamedTuple):
    """Solvers of all lanes, with their compiled program."""

    program: LaneProgram
    arguments: tuple[Any, ...]

    def steps(self, run: LaneRun, count: int) -> tuple[LaneRun, Columns]:
        *moved, rows = self.program.steps(self.arguments, *run, self.program.rows(), 0, count)
        rows = jax.tree.map(lambda a: np.swapaxes(np.asarray(a)[:, :count], 0, 1), jax.device_get(rows))
        return LaneRun(*moved), rows


def lane_run(
    chosen: Lanes, program: LaneProgram, hooks: Sequence[Hook], steps: int, warmup: int, every: int | None
) -> tuple[Plan, Progress, Any]:
    """Return the plan and the progress of a sweep after its warm-up, and the lanes that broke there."""
    began, lanes = time.perf_counter(), len(chosen.lanes)
    run, alive, warmed = program.start(chosen.arguments), jnp.ones(lanes, bool), None
    if warmup:
        run, alive, *more = program.warm_up(chosen.arguments, run, warmup)
        warmed = jax.device_get((alive, *more))
    guard, log = Steady(chosen.solvers[0]), Log()
    log.expect(program.row)
    plan = Plan(
        solver=chosen.solvers[0],
        source=Memory(chosen.arguments[3]),
        total=steps,
        log=log,
        began=began,
        guard=guard,
        event=_event,
        take=_take,
        judge=lambda plan, progress, rows, flags: progress,
        again=lambda plan, progress, run, start, stop: (progress.method.steps(run, stop - start)[0], None),
        every=every,
        hooks=HookRunner(hooks, True, frozenset()) if hooks else NoHooks(),
    )
    method = LaneMethod(program, chosen.arguments)
    return plan, Progress(LaneRun(run, alive, jnp.zeros(lanes, jnp.int32)), 0, method, guard), warmed


def _take(plan: Plan, progress: Progress, fit: LaneProgram, wanted: int) -> Chunk | Failure:
    moved, failure = caught("an objective", progress.method.steps, progress.run, wanted)
    if failure is not None:
        return failure
    run, rows = moved
    return Chunk(replace(progress, run=run), rows, wanted, None)


def _event(plan: Plan, progress: Progress, rows: Columns) -> Event:
    run, seconds = progress.run, time.perf_counter() - plan.began
    lanes, trace = len(run.alive), lanes_first(rows)
    name = plan.solver.name
    return Event(progress.step, plan.total, run.solver_runs, None, trace, seconds, name, lanes=lanes)


def lanes_first(rows: PyTree) -> PyTree:
    """Swap the first two axes: a trace has steps first, a sweep has lanes first."""
    return jax.tree.map(lambda a: np.swapaxes(a, 0, 1), rows)


def lane_status(plan: Plan, progress: Progress, chosen: Lanes, warmed: Any, warmup: int) -> list[Status]:
    """Return the status of each lane: the break, or the end of the sweep."""
    run, alive, taken = progress.run
    over = progress.status or completed(plan.total)
    if progress.failure is not None:
        over = failed(progress.step, progress.failure.what, progress.failure.error)
    status = [over] * len(chosen.lanes)
    if np.all(alive):
        return status
    broken = jax.device_get(progress.method.program.broken(chosen.arguments, run))
    for i in map(int, np.flatnonzero(~np.asarray(alive))):
        solver = chosen.solvers[i]
        if warmed is not None and not warmed[0][i]:
            status[i] = _diverged_in_warm_up(solver, i, warmup, *warmed[1:])
        else:
            status[i] = diverged(solver, int(taken[i]), _first_broken(solver, broken, i))
    return status


def _diverged_in_warm_up(
    solver: Solver, lane: int, steps: int, taken: np.ndarray, broken: dict[str, Any]
) -> Status:
    how = "became infinite or NaN" if taken[lane] < steps else "grew until its square overflows"
    names = _first_broken(solver, broken, lane)
    return diverged(solver, int(taken[lane]), names, warmup=True, how=how)


def _first_broken(solver: Solver, broken: dict[str, Any], lane: int) -> list[str]:
    names = [name for name, bad in broken.items() if bad[lane]]
    return [name for name in names if name in solver.variables] or names[:1] or ["outer_value"]
