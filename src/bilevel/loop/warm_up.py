"""The warm-up of a run: steps on y alone, before the first."""

import time

import jax

from bilevel.loop.chunk_length import Pace
from bilevel.loop.chunks import next_batch
from bilevel.loop.course import Course, Failed
from bilevel.loop.devices.agreement import have_data
from bilevel.loop.diagnose.divergence import blameworthy, cause
from bilevel.loop.finite import bad_data, blown_up, grown, narrow
from bilevel.loop.status import diverged, exhausted, interrupted_in_warm_up


def warm_up(course: Course, count: int) -> None:
    """In chunks of its own; if it breaks, the run ends where it began: no y of a warm-up that diverged is of use."""
    try:
        _warm_up(course, count)
    except Failed:
        raise
    except Exception as error:
        course.recover()
        raise course.fail("an objective, in the warm-up,", error) from error


def _warm_up(course: Course, count: int) -> None:
    course.kept.begin(course.run, course.step)
    start, done, pace, compiled = course.step, 0, Pace(None), False
    while done < count and course.status is None:
        given, more = course.source.stream, course.team.first(pace.steps(count - done))
        if given is None:
            given, more = next_batch(course) if have_data(course) else None, 1
            if course.failure is not None:
                what, error = course.failure
                raise course.fail(f"{what}, in the warm-up after {done} of {count} steps,", error)
            if given is None:
                ended = (
                    interrupted_in_warm_up(done, count)
                    if course.interrupts.asked
                    else exhausted(0, course.total)
                )
                course.status = ended.with_note(
                    f" It was in the warm-up, {done} of {count} steps of which were done."
                )
                return
        began = time.perf_counter()
        course.run = jax.block_until_ready(course.calls.warm_up(course.leaves, course.run, given, more))
        pace.took(more, time.perf_counter() - began, compiled=not compiled)
        done, compiled = done + more, True
        course.interrupts.agree()
        if course.interrupts.asked and done < count:
            course.status = interrupted_in_warm_up(done, count)
    data = bad_data(course.source.seen(course.kept.taken))
    names = course.broken(course.run)
    if not course.kept.possible:
        if names:
            course.status = diverged(course.solver, done, names, warmup=True, data=data, kept=False)
        return
    start_of_all = course.kept.run()
    enormous = [] if names else blown_up(course.solver, course.run, start_of_all)
    if not (names or enormous):
        return
    last = start + done
    if names:
        course.run, last, names, _ = course.last_sane(start_of_all, start, last, warm=True)
    large = grown(course.solver, course.run)
    given, _ = course.source.again(course.kept.taken, last - start, 1)
    data = data if data is not None and blameworthy(course.scene(), start_of_all, given) else None
    why = cause(course.scene(), large, warmup=True)
    course.cause, course.bad_data = why, data
    course.status = diverged(
        course.solver,
        last - start,
        names or enormous,
        warmup=True,
        data=data,
        suspicion=why.sentence,
        culprit=why.variable,
        how="became infinite or NaN" if names else "grew until its square overflows",
    ).with_note(narrow(course.run))
    course.back_to(start, start_of_all)
