"""Run as values: the plan, which never changes, and the progress, of which every stage returns a new one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bilevel.loop.errors import Failure
from bilevel.loop.interrupts import Interrupts
from bilevel.loop.policies import Alone, NoHooks, OnDevice, Snapshots, Steady, lost
from bilevel.loop.program import Calls, Program
from bilevel.loop.state import RunState
from bilevel.loop.status import Cause, Status
from bilevel.loop.trace import Log
from bilevel.solvers.base import Info, Solver

UNKNOWN = Cause()


Value = TypeVar("Value", bound="Replaceable")


class Replaceable:
    """Base class of frozen values that the stages of a run change by making another."""

    def but(self: Value, **changes: Any) -> Value:
        """Return a copy with changes. It is faster than `dataclasses.replace`, which calls the constructor."""
        after = object.__new__(type(self))
        vars(after).update(vars(self), **changes)
        return after


@dataclass(frozen=True)
class Method:
    """Solver with its compiled program. Another one replaces it when step sizes are halved."""

    solver: Solver
    program: Program
    leaves: list[Any] = field(repr=False)  # of the solver, as the program takes them


@dataclass(frozen=True)
class Progress(Replaceable):
    """Run between two stages."""

    run: Any  # a RunState; in a sweep a LaneRun
    step: int
    method: Any  # a Method; in a sweep a LaneMethod
    guard: Steady  # the policy for a divergence, with its observations
    info: Info | None = None  # of the last step
    status: Status | None = None  # set once the run has ended
    failure: Failure | None = None
    cause: Cause = UNKNOWN  # why it diverged, if it did
    bad_data: str | None = None  # a sentence about bad data that caused it
    suspect: tuple[str, int] | None = None  # the first metric that was not finite, and its step
    largest: float = 0.0  # the largest finite stationarity measure
    torn: bool = False  # the state may be later than the trace, and there is nothing to return to

    def after(self, run: Any, info: Info | None, failure: Failure | None = None) -> "Progress":
        """Return the progress with another run, the Info of its last step, and a failure."""
        return self.but(run=run, info=info, failure=self.failure or failure)

    @property
    def is_whole(self) -> bool:
        """Return whether state and trace exist and belong together."""
        return not (self.torn or lost(self.run))


@dataclass(frozen=True)
class Plan(Replaceable):
    """Request of a run, its data, and the chosen policies."""

    solver: Any  # as given
    source: Any  # the data: `Memory` or `Loader`
    total: int  # the step at which the run ends
    log: Log
    began: float  # by `time.perf_counter`
    guard: Steady  # the policy for a divergence
    event: Callable[["Plan", Progress, dict[str, Any]], Any]  # for the hooks
    take: Callable[..., Any]  # the stage that takes a chunk of steps
    judge: Callable[..., Progress]  # the stage that looks for a divergence
    again: Callable[..., tuple[Any, Info | None]]  # repeats earlier steps
    method_of: Any = None  # solver -> Method; a sweep has none
    request: Any = None  # what `bl.run` was asked for
    every: int | None = None
    hooks: NoHooks = field(default_factory=NoHooks)
    team: Alone = field(default_factory=Alone)
    storage: OnDevice = field(default_factory=OnDevice)
    snapshots: Snapshots = field(default_factory=Snapshots)  # chosen once the size of a step is known
    interrupts: Interrupts = field(default_factory=Interrupts)
    watch: Any = None  # checks for infinities, once the run has begun
    long: bool = False  # whether steps are so long that each is a separate call
    keep_info: bool = False  # whether a hook may read the trees of the last step's Info
    place: Any = None  # an earlier call's snapshot, to which this one returns if it diverges
    owed: int = 0  # batches of a loader used since that place
    borrowed: bool = False  # whether the state belongs to the user, as in a resumed run

    @property
    def at_once(self) -> bool:
        """Return whether one compiled call takes any number of steps."""
        return self.source.stream is not None and not (self.long or self.storage.offloads)

    def calls(self, method: Method) -> Calls:
        """Return the compiled functions: the same for a step and its repetition."""
        return method.program.donating if self.snapshots.donates else method.program.keeping

    def lent(self, run: RunState) -> RunState:
        """Return a run for a call after which `run` is still needed."""
        return self.storage.copied(run) if self.snapshots.donates else run

    def kept_step(self, progress: Progress) -> int:
        """Return the step to which the run can return."""
        return self.snapshots.since(progress.step)
