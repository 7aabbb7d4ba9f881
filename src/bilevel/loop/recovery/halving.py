"""`on_divergence="halve"`: a run that diverges returns to where it was good and continues with smaller steps.

Where it returns to. A chunk is good if its last outer value is no blow-up: at most ten times as far above the first
value as that is from zero. The run returns to the beginning of the last chunk that follows a good one.

Which step sizes. Plain steps on y or v beyond 2/λ, where λ is the curvature of g in y, diverge by themselves: then the
step sizes of the lower levels are halved, and so for those beyond 0.9 of that, as λ may be larger elsewhere. Otherwise
the outer step size is halved. If λ has grown on the way, so that the lower levels' steps are too large at the last
finite state, either may be the cause: then theirs are halved too every second such time in a row. All of them shrink
so, and the ratio of the outer step size to the others shrinks too, on which a single loop depends. Where a lower level
has a rule that cannot be judged so, all step sizes are halved each time.

How often. At most `MOST` times in one run. What smaller steps cannot cure is not tried: data that make an objective
NaN, and an objective that is not finite at the very state to which the run would return.

With `every=`, the places to return to are multiples of it, whatever hooks ask for and wherever an earlier call ended.
A result keeps the place (`Result.recovery`), so a resumed run returns to where an unbroken one would.
"""

from dataclasses import dataclass, replace

import numpy as np

from bilevel.loop.driver import back_to, has_diverged
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.policies import Steady
from bilevel.loop.recovery.place import Place, Recovery, Seen
from bilevel.loop.result import Result
from bilevel.loop.status import Code
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Solver
from bilevel.solvers.step_scaling import has_steps, with_smaller_steps

START = Seen()
MOST = 10  # halvings in one run; one that ended so and is resumed may have as many again


def check_halving(solver: Solver, snapshots: str) -> None:
    """Raise if this solver's steps cannot be halved, or the run keeps nothing to return to."""
    if snapshots == "off":
        raise ValueError(
            'on_divergence="halve" must be able to go back, and snapshots="off" keeps nothing to go back to: leave '
            "snapshots out"
        )
    if not has_steps(solver):
        raise ValueError(
            f'{solver.name} has no step sizes, so on_divergence="halve" has nothing to halve: leave it out'
        )


@dataclass(frozen=True)
class Halving(Steady):
    """The factors of the step sizes, how they came about, and whether they may become smaller.

    It does not halve where an earlier call did and this one stops if it diverges.
    """

    every: int | None = None
    count: int = 0  # see Recovery
    doubtful: int = 0  # likewise
    seen: Seen = START  # so far
    seen_there: Seen = START  # at the place to return to

    @classmethod
    def of(cls, solver: Solver, halves: bool, every: int | None, resume: Result | None) -> "Halving":
        """Return the policy at the start of a call."""
        if resume is None or not resume.steps:
            return cls(solver, halves, () if resume is None else resume.halvings, every)
        if (earlier := resume.recovery) is None:  # of a run that would have stopped, or of an older version
            seen = Seen().after(resume.trace)
            return cls(solver, halves, resume.halvings, every, 0, 0, seen, seen)
        there = earlier.seen if earlier.place is None else earlier.place.seen
        count = 0 if resume.status.code is Code.DIVERGED else earlier.count
        return cls(solver, halves, resume.halvings, every, count, earlier.doubtful, earlier.seen, there)

    @property
    def factors(self) -> tuple[float, float]:
        """Return the factors of the lower levels' step sizes and of the outer one."""
        return (self.halvings[-1][1], self.halvings[-1][2]) if self.halvings else (1.0, 1.0)

    @property
    def solver(self) -> Solver:
        """Return the solver with the step sizes in force: until the first halving, the one that was given."""
        return with_smaller_steps(self.given, *self.factors) if self.halvings else self.given

    def saw(self, rows: Columns) -> "Halving":
        return replace(self, seen=self.seen.after(rows)) if rows else self

    def renews(self, step: int) -> bool:
        """Return whether the run, which has reached this step, may forget what it could return to before."""
        on_grid = self.every is None or step % self.every == 0
        return not self.halves or (on_grid and self._is_good)

    @property
    def _is_good(self) -> bool:
        first, least, last = self.seen
        return bool(np.isnan(last) or last <= first + 10 * max(abs(first), least))

    def kept(self, here: bool) -> "Halving":
        """Return the policy after a look at what is kept, which may be the state `here`."""
        return replace(self, seen_there=self.seen) if here else self

    def recovery(self, plan: Plan, progress: Progress) -> Recovery | None:
        """Return what a result needs besides its state, so that it is resumed as an unbroken run continues."""
        if not self.halves:
            return None
        snapshots, place = plan.snapshots, None
        here = snapshots.step is None or snapshots.step >= progress.step
        if snapshots.step is not None and not here and not self.renews(progress.step):
            rows = None if plan.log.thin is None else plan.log.since(snapshots.step - 1)
            place = Place(
                snapshots.step, snapshots.lasting(), self.seen_there, list(snapshots.taken), rows=rows
            )
        return Recovery(self.seen_there if here else self.seen, self.count, self.doubtful, place)

    def retry(self, plan: Plan, progress: Progress) -> Progress:
        """Return the progress where the run was good, with half the steps; or with a note, if that is no use."""
        status = progress.status
        if not self.halves or status is None or not has_diverged(progress):
            return progress
        there = status.step == plan.kept_step(progress)
        hopeless = progress.bad_data is not None or (not progress.cause.curable and there)
        if hopeless or self.count >= MOST:
            return replace(progress, status=status.with_note(_in_vain(self.count)))
        lower, outer = self.factors
        shrink, step = progress.cause.shrink, plan.kept_step(progress)
        doubtful = self.doubtful + 1 if shrink == "mostly outer" else 0
        lower = lower if shrink == "outer" or doubtful % 2 else lower / 2
        outer = outer if shrink == "lower" else outer / 2
        halvings = (*self.halvings, (step, lower, outer))
        guard = replace(
            self, halvings=halvings, count=self.count + 1, doubtful=doubtful, seen=self.seen_there
        )
        progress = back_to(plan, progress, step, plan.snapshots.run())
        taken = plan.snapshots.taken  # those of a warm-up too, which takes no steps
        plan.source.give_back(plan.snapshots.drop(len(taken)))
        return replace(progress, guard=guard, status=None, method=plan.method_of(guard.solver))

    def note(self) -> str:
        """Return what the status of a run with halved steps says."""
        if not self.halvings:
            return ""
        at, lower, outer = self.halvings[-1]
        return (
            f" It had diverged on the way, and went on from step {at} with {lower:.3g} of the lower levels' step sizes "
            f"and {outer:.3g} of the outer one's; resume=result keeps them so."
        )


def _in_vain(times: int) -> str:
    return (
        " Smaller steps were not tried, as they cannot mend that."
        if not times
        else f" Halving the step sizes {times} times did not help."
    )
