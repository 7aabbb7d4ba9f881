"""Run at the moment when its failure is explained."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bilevel.loop.data.streams import FullBatch, draw
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.state import RunState, dress
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Solver
from bilevel.solvers.messages import sentence


@dataclass(frozen=True)
class Scene:
    """Values that explain a run, and functions that compute costly ones on request."""

    solver: Solver
    run: RunState  # fetched to the device
    step: int
    trace: Columns  # rows of all steps
    recent: Columns  # rows since the state that the run can return to
    stream: Any  # data in memory; None for a loader
    alone: bool  # no other process takes part in the run
    measure: Callable[..., Any]  # function(solver, state, batch, whole, *arguments), compiled, at `run`
    given: Callable[[], Any]  # the data of the next step
    seen: Callable[[], Any]  # the data of an earlier step; None if there is none
    before: Callable[[], tuple[int, RunState]]  # an earlier state, and its step
    after: Callable[[bool], RunState]  # the run one step later; True for a warm-up step

    @property
    def noisy(self) -> bool:
        """Return whether a step sees other data, or another key, than the step before."""
        return not isinstance(self.stream, FullBatch) or "key" in self.solver.wants

    def batch(self, given: Any, run: RunState | None = None) -> Any:
        """Return the batch of `run`'s next step from `given`."""
        run = self.run if run is None else run
        _, batch = draw(given, run.cursor, self.solver.draws, self.solver.traits.same_rows)
        return dress(self.solver, run, batch)

    def suspicion(self) -> str:
        """Return the solver's own suspicion about its state."""
        given = self.seen()
        return "" if given is None else sentence(self.solver.suspicion(self.run.solver, self.batch(given)))


def scene_of(plan: Plan, progress: Progress) -> Scene:
    """Return the values that explain the run's trouble at its present step."""
    source, snapshots, storage, method = plan.source, plan.snapshots, plan.storage, progress.method

    def seen() -> Any:
        nothing = source.stream is None and not snapshots.taken
        return None if nothing else source.again(snapshots.taken, 0, 1)[0]

    def before() -> tuple[int, RunState]:
        step, run = snapshots.before()
        return step, storage.fetched(run)

    def after(warmup: bool) -> RunState:
        given, calls, run = source.peek(), plan.calls(method), plan.lent(progress.run)
        if warmup:
            return calls.warm_up(method.leaves, run, given, 1)
        fit = method.program.fit(method.leaves, progress.run, given, plan.total)
        return storage.fetched(calls.one(method.leaves, run, given, fit.rows(), 0, False)[0])

    return Scene(
        solver=method.solver,
        run=storage.fetched(progress.run),
        step=progress.step,
        trace=plan.log.trace,
        recent=plan.log.rows(plan.kept_step(progress)),
        stream=source.stream,
        alone=not plan.team.several,
        measure=partial(measured, plan, progress),
        given=source.peek,
        seen=seen,
        before=before,
        after=after,
    )


def measured(plan: Plan, progress: Progress, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(solver, state, batch, whole, *arguments)` at the run's present step, compiled."""
    source, taken = plan.source, plan.snapshots.taken
    nothing = source.stream is None and not taken
    given = source.peek() if nothing else source.again(taken, len(taken), 1)[0]
    run = plan.storage.fetched(progress.run)
    return progress.method.solver.compiled(_on_batch, function)(run, given, *arguments)


def _on_batch(
    solver: Solver, function: Callable[..., Any], run: RunState, given: Any, *arguments: Any
) -> Any:
    _, batch = draw(given, run.cursor, solver.draws, solver.traits.same_rows)
    whole = isinstance(given, FullBatch)
    return function(solver, run.solver, dress(solver, run, batch), whole, *arguments)
