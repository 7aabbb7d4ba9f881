"""`on_divergence="halve"`: a run that diverges goes back to where it was good, and on with smaller steps.

Where to. A chunk is good if it ends with an outer value that is no blow-up: at most ten times as far above the first as
that is from zero. The run goes back to the beginning of the last chunk that a good one came before.

Whose steps. Plain steps on y or v beyond 2/λ, with λ the curvature of g in y, are to blame themselves: then the step
sizes of the lower levels are halved, and from 0.9 of that on, as λ may be larger elsewhere. Else that of the outer one
is. If λ has grown on the way, so that at the last finite state those of the lower levels are too large, they may have
been to blame or not: then they are halved too every second such time in a row, so that all of them shrink, and the
outer one's ratio to the others too, on which a single loop depends. (To halve all of them always would leave it as it
is.) Where a lower level has a rule that cannot be judged so, all of them are halved each time.

How often. At most `MOST` times in one call; and what smaller steps cannot mend is not tried: data that make an
objective NaN, and an objective that is not finite at the very state to which the run would go back.
"""

import jax
import numpy as np

from bilevel.checks import check_choice
from bilevel.loop.course import Course
from bilevel.loop.result import Result
from bilevel.loop.status import Code, Status
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Solver
from bilevel.solvers.smaller import has_steps, with_smaller_steps

POLICIES = ("stop", "halve")
MOST = 10  # halvings in one call of run

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

    def __init__(self, solver: Solver, halve: bool, resume: Result | None):
        self.halve, self._given = halve, solver
        self.halvings: Halvings = () if resume is None else resume.halvings
        self._earlier = len(self.halvings)
        self._first = self._least = self._last = np.nan  # outer values
        self._mostly = 0  # halvings in a row that were meant for the outer level, with some doubt
        if resume is not None and resume.steps:
            self.saw(resume.trace)

    @property
    def factors(self) -> tuple[float, float]:
        """Of the lower levels' step sizes, and of the outer one's."""
        return (self.halvings[-1][1], self.halvings[-1][2]) if self.halvings else (1.0, 1.0)

    @property
    def solver(self) -> Solver:
        """With the step sizes in force."""
        return with_smaller_steps(self._given, *self.factors) if self.halve or self.halvings else self._given

    def saw(self, rows: Columns) -> None:
        values = np.asarray(rows["outer_value"], dtype=float)
        self._first = values[0] if np.isnan(self._first) else self._first
        self._least = np.fmin(self._least, np.abs(values).min())
        self._last = values[-1]

    @property
    def good(self) -> bool:
        """Whether the run may forget what it could go back to before."""
        far = 10 * max(abs(self._first), self._least)
        unseen = np.isnan(self._last)
        return bool(not self.halve or unseen or self._last <= self._first + far)

    def goes_on(self, course: Course) -> bool:
        """After a divergence: back to where it was good, with half the steps. `False` if that is no use."""
        status = course.status
        if not self.halve or status is None or status.code is not Code.DIVERGED:
            return False
        fresh = len(self.halvings) - self._earlier
        if self._hopeless(course, status) or fresh >= MOST:
            course.status = status.with_note(_in_vain(fresh))
            return False
        lower, outer = self.factors
        shrink = course.cause.shrink
        self._mostly = self._mostly + 1 if shrink == "mostly outer" else 0
        lower = lower if shrink == "outer" or self._mostly % 2 else lower / 2
        outer = outer if shrink == "lower" else outer / 2
        self.halvings = (*self.halvings, (course.kept_step, lower, outer))
        course.back_to(course.kept_step, course.kept.run())
        course.give_back(len(course.kept.taken))  # those of a warm-up too, which takes no steps
        course.solver, course.status = self.solver, None
        course.leaves = jax.tree.leaves(course.solver)
        self._last = np.nan
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
        else f" Smaller steps, halved {times} times, were of no avail."
    )
