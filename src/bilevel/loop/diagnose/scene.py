"""Run at the moment when its failure is explained, and measurements of its next step."""

from collections.abc import Callable
from typing import Any

from bilevel.loop.data.streams import FullBatch, draw
from bilevel.loop.finite import grown, run_away
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.state import RunState, dress
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Solver
from bilevel.solvers.messages import sentence


class Scene:
    """Values that explain the trouble of a run at its present step. Methods return those that cost more."""

    def __init__(self, plan: Plan, progress: Progress, warmup: bool = False):
        self._plan, self._progress = plan, progress
        self.warmup = warmup  # whether the next step is one of the warm-up
        self.solver: Solver = progress.method.solver
        self.run: RunState = plan.storage.fetched(progress.run)
        self.step: int = progress.step
        self.trace: Columns = plan.log.trace
        self.stream: Any = plan.source.stream  # data in memory; None for a loader
        self.alone: bool = not plan.team.several  # whether no other process takes part in the run
        # whether a step sees other data, or another key, than the step before
        self.noisy: bool = not isinstance(self.stream, FullBatch) or "key" in self.solver.wants

    def recent(self) -> Columns:
        """Return the rows since the state that the run can return to."""
        return self._plan.log.rows(self._plan.kept_step(self._progress))

    def batch(self, given: Any = None) -> Any:
        """Return the batch of the next step, from other data if they are `given`."""
        given = self._plan.source.peek() if given is None else given
        return _batch(self.solver, self.run, given)

    def before(self) -> tuple[int, RunState]:
        """Return an earlier state and its step."""
        step, run = self._plan.snapshots.before()
        return step, self._plan.storage.fetched(run)

    def large(self) -> list[str]:
        """Return the variables whose squares are about to overflow, or the ones that have run away."""
        return grown(self.solver, self.run) or run_away(self.solver, self.run, self.before()[1])

    def after(self) -> RunState:
        """Return the run one step later."""
        plan, method = self._plan, self._progress.method
        given, calls, run = plan.source.peek(), plan.calls(method), plan.lent(self._progress.run)
        if self.warmup:
            return calls.warm_up(method.leaves, run, given, 1)
        fit = method.program.fit(method.leaves, self._progress.run, given, plan.total)
        return plan.storage.fetched(calls.one(method.leaves, run, given, fit.rows(), 0, False)[0])

    def suspicion(self) -> str:
        """Return the solver's own suspicion about its state."""
        given = _seen(self._plan, 0)
        return "" if given is None else sentence(self.solver.suspicion(self.run.solver, self.batch(given)))

    def measure(self, function: Callable[..., Any]) -> Any:
        return measured(self._plan, self._progress, function)


def measured(plan: Plan, progress: Progress, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(solver, state, batch, whole, *arguments)` at the run's present step, compiled."""
    given = _seen(plan, len(plan.snapshots.taken))
    given = plan.source.peek() if given is None else given
    run = plan.storage.fetched(progress.run)
    return progress.method.solver.compiled(_on_batch, function)(run, given, *arguments)


def _seen(plan: Plan, index: int) -> Any:
    """Return the data of a step since the kept state, or of the last known one; None if there are none."""
    source, taken = plan.source, plan.snapshots.taken
    return None if source.stream is None and not taken else source.again(taken, index, 1)[0]


def _on_batch(
    solver: Solver, function: Callable[..., Any], run: RunState, given: Any, *arguments: Any
) -> Any:
    batch = _batch(solver, run, given)
    return function(solver, run.solver, batch, isinstance(given, FullBatch), *arguments)


def _batch(solver: Solver, run: RunState, given: Any) -> Any:
    _, batch = draw(given, run.cursor, solver.draws, solver.traits.same_rows)
    return dress(solver, run, batch)
