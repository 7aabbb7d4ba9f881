"""A run as values: the plan, which never changes, and the progress, of which every stage makes a new one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bilevel.loop.errors import Failure
from bilevel.loop.interrupts import Interrupts
from bilevel.loop.policies import Alone, NoHooks, OnDevice, Snapshots, Steady, lost
from bilevel.loop.program import Calls, Program
from bilevel.loop.state import RunState
from bilevel.loop.status import Cause, Status
from bilevel.loop.trace import Log
from bilevel.solvers.base import Info, Solver

UNKNOWN = Cause()


@dataclass(frozen=True)
class Method:
    """A solver with its compiled program; another one takes over when step sizes are halved."""

    solver: Solver
    program: Program
    leaves: list[Any] = field(repr=False)  # of the solver, as the program takes them


@dataclass(frozen=True)
class Progress:
    """A run between two stages."""

    run: Any  # a RunState; of a sweep, that of all lanes with what the lanes carry
    step: int
    method: Any  # a Method; of a sweep, its program
    guard: Steady  # the policy for a divergence, with what it has seen
    info: Info | None = None  # of the last step
    status: Status | None = None  # how the run ended, once it has
    failure: Failure | None = None
    cause: Cause = UNKNOWN  # why it diverged, if it did
    bad_data: str | None = None  # the part of the data in that
    suspect: tuple[str, int] | None = None  # the first metric that was not finite, and its step
    largest: float = 0.0  # the largest finite measure of stationarity
    torn: bool = False  # the state may be further than the trace, and there is nothing to return to

    def after(self, run: Any, info: Info | None, failure: Failure | None = None) -> "Progress":
        """Return the progress with another run, the Info of its last step, and what raised on the way."""
        return replace(self, run=run, info=info, failure=self.failure or failure)

    @property
    def is_whole(self) -> bool:
        """Whether state and trace belong together and exist."""
        return not (self.torn or lost(self.run))


@dataclass(frozen=True)
class Plan:
    """What a run was asked for, its data, and the policies that it chose."""

    solver: Any  # as it was given
    source: Any  # the data: `Memory` or `Loader`
    total: int  # the step at which the run ends
    log: Log
    began: float  # by `time.perf_counter`
    guard: Steady  # the policy for a divergence
    event: Callable[["Plan", Progress, dict[str, Any]], Any]  # for the hooks
    take: Callable[..., Any]  # the stage that takes a chunk of steps
    judge: Callable[..., Progress]  # the stage that looks for a divergence
    again: Callable[..., tuple[Any, Info | None]]  # repeats the steps to an earlier one
    method_of: Any = None  # solver -> Method; a sweep has none
    request: Any = None  # what `bl.run` was asked for
    every: int | None = None
    hooks: NoHooks = field(default_factory=NoHooks)
    team: Alone = field(default_factory=Alone)
    storage: OnDevice = field(default_factory=OnDevice)
    snapshots: Snapshots = field(default_factory=Snapshots)  # chosen once the size of a step is known
    interrupts: Interrupts = field(default_factory=Interrupts)
    watch: Any = None  # looks for infinities, once the run has begun
    long: bool = False  # whether every step is a call, as steps take long
    keep_info: bool = False  # whether a hook may look at the trees of the last step's Info
    place: Any = None  # an earlier call's snapshot, to which this one returns if it diverges
    owed: int = 0  # batches of a loader that were used since that place
    borrowed: bool = False  # whether the state is the user's, as of a resumed run

    @property
    def at_once(self) -> bool:
        """Whether any number of steps is one compiled call."""
        return self.source.stream is not None and not (self.long or self.storage.offloads)

    def calls(self, method: Method) -> Calls:
        """Return the compiled functions: the same ones for a step and for its repetition."""
        return method.program.donating if self.snapshots.donates else method.program.keeping

    def lent(self, run: RunState) -> RunState:
        """Return a run for a call after which `run` is needed again."""
        return self.storage.copied(run) if self.snapshots.donates else run

    def kept_step(self, progress: Progress) -> int:
        """Return the step that the run can return to."""
        return self.snapshots.since(progress.step)
