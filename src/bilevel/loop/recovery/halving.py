"""`on_divergence="halve"`: a run that diverges returns to a good state and continues with smaller steps.

Return point: the start of the last chunk that follows a good one. A chunk is good if its last outer value
exceeds the first value of the run by at most ten times the distance between that and zero. With `every=`,
return points are multiples of it, independent of hooks and of the end of an earlier call. A result keeps the
return point (`Result.recovery`), so a resumed run returns to the same one as an unbroken run.

Step sizes: plain steps on y or v above 2/λ diverge, where λ is the curvature of g in y. Then the lower
levels' step sizes are halved, also above 0.9 of that limit, because λ may be larger elsewhere. Otherwise the
outer one is halved. If λ has grown during the run so that the lower steps are too large at the last finite
state, either level may be the cause. Then the lower ones are halved too every second such time in a row: all
step sizes shrink, and so does the ratio of the outer one to the others, which matters in a single loop. If a
lower level has a rule without such a limit, all step sizes are halved each time.

Limit: at most `MOST` times in one run. There is no retry if smaller steps cannot help: data that make an
objective NaN, or an objective that is not finite at the return point.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from bilevel.loop.data.loader_buffer import Mark
from bilevel.loop.driver import back_to
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.policies import Steady
from bilevel.loop.result import Result
from bilevel.loop.state import RunState
from bilevel.loop.status import Code
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Solver
from bilevel.solvers.step_scaling import has_steps, with_smaller_steps

MOST = 10  # halvings in one run; a resumed run after `DIVERGED` starts from 0


class Seen(NamedTuple):
    """Outer values: the first, the smallest absolute value, and the last. NaN before the first step."""

    first: float = np.nan
    least: float = np.nan
    last: float = np.nan

    def after(self, rows: Columns) -> "Seen":
        """Return the values after the rows of further steps."""
        values = np.asarray(rows["outer_value"], dtype=float)
        first = values[0] if np.isnan(self.first) else self.first
        return Seen(float(first), float(np.fmin(self.least, np.abs(values).min())), float(values[-1]))


START = Seen()


@dataclass(frozen=True)
class Place:
    """Earlier state of the run, to which it returns if it diverges."""

    step: int
    run: RunState
    seen: Seen  # up to that step
    taken: list[Any]  # a loader's batches since then, in memory
    mark: Mark | None = None  # on disk: the loader's position at that step
    rows: Columns | None = None  # of a thinned trace: all rows since then, and the one before


@dataclass(frozen=True)
class Recovery:
    """Recovery data of a result, with which a run resumes as if it had never stopped."""

    seen: Seen
    count: int  # halvings that count toward the most that one run may have
    doubtful: int  # halvings in a row meant mostly for the outer level
    place: Place | None  # None: the run returns to the state of the result itself


def check_halving(solver: Solver, snapshots: str) -> None:
    """Raise if this solver has no step sizes to halve, or the run keeps nothing to return to."""
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
    """Policy for halving: the factors of the step sizes, their history, and whether they may shrink further.

    If an earlier call halved and this one does not, the run keeps the factors and stops if it diverges.
    """

    every: int | None = None
    count: int = 0  # see Recovery
    doubtful: int = 0  # see Recovery
    seen: Seen = START  # so far
    seen_there: Seen = START  # at the return point

    @classmethod
    def of(cls, solver: Solver, halves: bool, every: int | None, resume: Result | None) -> "Halving":
        """Return the policy at the start of a call."""
        if resume is None or not resume.steps:
            return cls(solver, halves, () if resume is None else resume.halvings, every)
        if (earlier := resume.recovery) is None:  # from a run without halving, or from an older version
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
        """Return the solver with the current step sizes. Before the first halving it is the given one."""
        return with_smaller_steps(self.given, *self.factors) if self.halvings else self.given

    def saw(self, rows: Columns) -> "Halving":
        return replace(self, seen=self.seen.after(rows)) if rows else self

    def renews(self, step: int) -> bool:
        """Return whether the run at this step may drop its earlier return point."""
        first, least, last = self.seen
        is_good = np.isnan(last) or last <= first + 10 * max(abs(first), least)
        on_grid = self.every is None or step % self.every == 0
        return not self.halves or bool(on_grid and is_good)

    def kept(self, here: bool) -> "Halving":
        """Return the policy after an update of the kept state, which may be the state `here`."""
        return replace(self, seen_there=self.seen) if here else self

    def recovery(self, plan: Plan, progress: Progress) -> Recovery | None:
        """Return the data with which a resumed run continues like an unbroken one."""
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
        """Return the progress at the last good state with smaller steps, or with a note if none help."""
        status, step = progress.status, plan.kept_step(progress)
        if not self.halves or status is None or status.code is not Code.DIVERGED:
            return progress
        hopeless = progress.bad_data is not None or (not progress.cause.curable and status.step == step)
        if hopeless or self.count >= MOST:
            not_tried = " Smaller steps were not tried, as they cannot help."
            in_vain = f" Halving the step sizes {self.count} times did not help." if self.count else not_tried
            return replace(progress, status=status.with_note(in_vain))
        (lower, outer), shrink = self.factors, progress.cause.shrink
        doubtful = self.doubtful + 1 if shrink == "mostly outer" else 0
        lower = lower if shrink == "outer" or doubtful % 2 else lower / 2
        outer = outer if shrink == "lower" else outer / 2
        guard = replace(
            self,
            halvings=(*self.halvings, (step, lower, outer)),
            count=self.count + 1,
            doubtful=doubtful,
            seen=self.seen_there,
        )
        progress = back_to(plan, progress, step, plan.snapshots.run())
        return replace(progress, guard=guard, status=None, method=plan.method_of(guard.solver))

    def note(self) -> str:
        """Return the sentence for the status of a run with halved steps."""
        if not self.halvings:
            return ""
        at, lower, outer = self.halvings[-1]
        return (
            f" It had diverged on the way, and went on from step {at} with {lower:.3g} of the lower levels' step sizes "
            f"and {outer:.3g} of the outer one's; resume=result keeps them so."
        )
