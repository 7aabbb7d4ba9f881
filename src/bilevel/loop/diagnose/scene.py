"""A run at the moment when its trouble is explained."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bilevel.loop.data.streams import FullBatch, draw
from bilevel.loop.state import RunState, dress
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Solver
from bilevel.solvers.messages import sentence


@dataclass(frozen=True)
class Scene:
    """The values that explain a run, and functions that fetch what costs time or memory only where it is needed."""

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
        """Whether a step sees other data, or another key, than the step before."""
        return not isinstance(self.stream, FullBatch) or "key" in self.solver.wants

    def batch(self, given: Any, run: RunState | None = None) -> Any:
        """Return the batch of `run`'s next step from `given`."""
        run = self.run if run is None else run
        _, batch = draw(given, run.cursor, self.solver.draws, self.solver.traits.same_rows)
        return dress(self.solver, run, batch)

    def suspicion(self) -> str:
        """Return what the solver knows about its state."""
        given = self.seen()
        return "" if given is None else sentence(self.solver.suspicion(self.run.solver, self.batch(given)))
