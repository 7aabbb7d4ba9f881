"""After a chunk: whether all is still finite, and if not, since when and why."""

import numpy as np

from bilevel.loop.course import Course
from bilevel.loop.diagnose.divergence import blameworthy, cause
from bilevel.loop.finite import bad_data, first_bad_row, grown, narrow, run_away
from bilevel.loop.status import diverged
from bilevel.loop.trace import Columns, rows_in
from bilevel.solvers.base import Info

LOOK_AHEAD = 200  # steps, after the loss alone has become infinite, within which a variable may follow


def judge(course: Course, rows: Columns, seen: np.ndarray) -> Info | None:
    """If something is no longer finite, the run goes back to where all was, and the Info there is returned."""
    first = course.step - rows_in(rows)
    broken, row = course.watch.broken(seen, course.run), first_bad_row(rows)
    if not broken and row is None:
        return None
    bad_value = course.step if row is None else first + row
    data = bad_data(course.source.seen(course.kept.taken))
    if not course.kept.possible:
        course.status = diverged(
            course.solver, min(bad_value, course.step), broken or ["outer_value"], data=data, kept=False
        )
        return None
    good, low = course.kept.run(), course.kept_step
    run, last, names, info = (
        course.last_sane(good, low, course.step) if broken else (good, course.step, broken, None)
    )
    loss_first = bad_value < last
    if loss_first:  # where the variables are about to follow, they are the reason
        (run, info), last = course.again(good, low, bad_value), bad_value
        _, _, names, _ = course.last_sane(run, last, last + LOOK_AHEAD)
    # A variable that has run away is the reason, whichever breaks first.
    before = course.kept.before()[1]
    large = grown(course.solver, run) or run_away(course.solver, run, before)
    names = names or large or ["outer_value"]
    course.back_to(last, run)
    data = data if data is not None and blameworthy(course.scene(), before, course.source.peek()) else None
    why = cause(course.scene(), large)
    course.cause, course.bad_data = why, data
    course.status = diverged(
        course.solver,
        last,
        names,
        data=data,
        loss_first=loss_first,
        because=large,
        suspicion=why.sentence,
        culprit=why.variable,
    ).with_note(narrow(run))
    return info
