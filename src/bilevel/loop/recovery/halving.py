"""`on_divergence="halve"`: a run that diverges goes back to where it was good, and on with smaller steps.

Where to. A chunk is good if it ends with an outer value that is no blow-up: at most ten times as far above the first as
that is from zero. The run goes back to the beginning of the last chunk that a good one came before.

Whose steps. Plain steps on y or v beyond 2/λ, with λ the curvature of g in y, are to blame themselves: then the step
sizes of the lower levels are halved, and from 0.9 of that on, as λ may be larger elsewhere. Else that of the outer one
is. If λ has grown on the way, so that at the last finite state those of the lower levels are too large, they may have
been to blame or not: then they are halved too every second such time in a row, so that all of them shrink, and the
outer one's ratio to the others too, on which a single loop depends. (To halve all of them always would leave it as it
is.) Where a lower level has a rule that cannot be judged so, all of them are halved each time.

How often. At most `MOST` times in one run; and what smaller steps cannot mend is not tried: data that make an
objective NaN, and an objective that is not finite at the very state to which the run would go back.

With `every=`, the places to go back to are multiples of it, whatever hooks ask for and wherever an earlier call ended.
A result keeps the place (`Result.recovery`), so that a resumed run goes back to where an unbroken one would.
"""

import numpy as np

from bilevel.checks import check_choice
from bilevel.loop.course import Course
from bilevel.loop.recovery.place import Place, Recovery, Seen
from bilevel.loop.result import Result
from bilevel.loop.status import Code, Status
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Solver
from bilevel.solvers.step_scaling import has_steps, with_smaller_steps

POLICIES = ("stop", "halve")
MOST = 10  # halvings in one run; one that ended so and is resumed may have as many again

# (the step it went back to, the factors from there on of the lower levels' step sizes and of the outer one's)
Halvings = tuple[tuple[int, float, float], ...]


def check_policy(policy: str, solver: Solver, replay: str) -> bool:
    """Whether to halve, or why that cannot be."""
    check_choice(policy, "on_divergence", POLICIES)
    if policy == "halve" and replay == "off":
        raise ValueError(
            'on_divergence="halve" must be able to go back, and replay="off" keeps nothing to go back to: leave replay '
            "out"
        )
    if policy == "halve" and not has_steps(solver):
        raise ValueError(
            f'{solver.name} has no step sizes, so on_divergence="halve" has nothing to halve: leave it out'
        )
    return policy == "halve"


class Guard:
    """The factors of the step sizes, how they came about, and whether they may become smaller still."""

    def __init__(self, solver: Solver, halve: bool, every: int | None, resume: Result | None):
        self.halve, self.given, self._every = halve, solver, every
        self.halvings: Halvings = () if resume is None else resume.halvings
        self._count = self._doubtful = 0  # see Recovery
        self._seen = self._seen_there = Seen()  # so far; at the place to go back to
        if resume is None or not resume.steps:
            return
        if (earlier := resume.recovery) is None:  # of a run that would have stopped, or of an older version
            self._seen = self._seen_there = Seen().after(resume.trace)
            return
        self._seen, self._doubtful = earlier.seen, earlier.doubtful
        self._seen_there = earlier.seen if earlier.place is None else earlier.place.seen
        self._count = 0 if resume.status.code is Code.DIVERGED else earlier.count

    @property
    def factors(self) -> tuple[float, float]:
        """Of the lower levels' step sizes, and of the outer one's."""
        return (self.halvings[-1][1], self.halvings[-1][2]) if self.halvings else (1.0, 1.0)

    @property
    def solver(self) -> Solver:
        """The solver with the step sizes in force: until the first halving, the one that was given."""
        return with_smaller_steps(self.given, *self.factors) if self.halvings else self.given

    def saw(self, rows: Columns) -> None:
        if rows:
            self._seen = self._seen.after(rows)

    def renews(self, step: int) -> bool:
        """Whether the run may forget what it could go back to before this step, which it has reached."""
        on_grid = self._every is None or step % self._every == 0
        return not self.halve or (on_grid and self._good)

    @property
    def _good(self) -> bool:
        first, least, last = self._seen
        return bool(np.isnan(last) or last <= first + 10 * max(abs(first), least))

    def keep(self, course: Course) -> None:
        """At the start of a chunk: what the run can go back to, if it is time for another."""
        course.kept.at_start_of_chunk(course.run, course.step, self.renews(course.step))
        if course.kept.step == course.step:
            self._seen_there = self._seen

    def recovery(self, course: Course) -> Recovery | None:
        """What a result needs besides its state, to be resumed as an unbroken run goes on."""
        if not self.halve:
            return None
        kept, place = course.kept, None
        here = kept.step is None or kept.step >= course.step
        if kept.step is not None and not here and not self.renews(course.step):
            rows = None if course.log.thin is None else course.log.since(kept.step - 1)
            place = Place(kept.step, kept.lasting(), self._seen_there, list(kept.taken), rows=rows)
        return Recovery(self._seen_there if here else self._seen, self._count, self._doubtful, place)

    def goes_on(self, course: Course) -> bool:
        """After a divergence: back to where it was good, with half the steps. `False` if that is no use."""
        status = course.status
        if not self.halve or status is None or status.code is not Code.DIVERGED:
            return False
        if self._hopeless(course, status) or self._count >= MOST:
            course.status = status.with_note(_in_vain(self._count))
            return False
        lower, outer = self.factors
        shrink = course.cause.shrink
        self._doubtful = self._doubtful + 1 if shrink == "mostly outer" else 0
        lower = lower if shrink == "outer" or self._doubtful % 2 else lower / 2
        outer = outer if shrink == "lower" else outer / 2
        self.halvings, self._count = (*self.halvings, (course.kept_step, lower, outer)), self._count + 1
        course.back_to(course.kept_step, course.kept.run())
        course.give_back(len(course.kept.taken))  # those of a warm-up too, which takes no steps
        course.status, self._seen = None, self._seen_there
        return True

    def _hopeless(self, course: Course, status: Status) -> bool:
        return course.bad_data is not None or (not course.cause.curable and status.step == course.kept_step)

    def note(self) -> str:
        """For the status of a run that went on."""
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
