"""Warm-up of a run: steps only on y, before the first step."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from bilevel.loop.chunks import Pace, next_batch
from bilevel.loop.diagnose.divergence import blameworthy
from bilevel.loop.diagnose.scene import Scene
from bilevel.loop.driver import back_to, has_data, recovered
from bilevel.loop.errors import Failure, caught
from bilevel.loop.finite import bad_data, blown_up
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.recovery.rollback import broken_in, explained, last_finite
from bilevel.loop.state import RunState
from bilevel.loop.status import diverged, exhausted, interrupted_in_warm_up

WHAT = "an objective, in the warm-up,"


def warm_up(plan: Plan, progress: Progress, count: int) -> Progress:
    """Take the warm-up steps in chunks. If they diverge, the run ends at its start."""
    plan.snapshots.begin(progress.run, progress.step)
    done, pace, compiled = 0, Pace(None), False
    while done < count and progress.status is None:
        given, more = plan.source.stream, plan.team.first(pace.steps(count - done))
        if given is None:
            (given, failure), more = _next(plan), 1
            if failure is not None:
                what = f"{failure.what}, in the warm-up after {done} of {count} steps,"
                return replace(progress, failure=plan.team.named(failure.blamed(what)))
            if given is None:
                asked = plan.interrupts.asked
                over = interrupted_in_warm_up(done, count) if asked else exhausted(0, plan.total)
                note = f" It was in the warm-up, {done} of {count} steps of which were done."
                return replace(progress, status=over.with_note(note))
        began, method = time.perf_counter(), progress.method
        arguments = method.leaves, progress.run, given, more
        run, failure = caught(WHAT, _steps, plan.calls(method).warm_up, *arguments)
        if failure is not None:
            return replace(recovered(plan, progress), failure=plan.team.named(failure))
        progress = replace(progress, run=run)
        pace.took(more, time.perf_counter() - began, compiled=not compiled)
        done, compiled = done + more, True
        plan.interrupts.agree(plan.team)
        if plan.interrupts.asked and done < count:
            progress = replace(progress, status=interrupted_in_warm_up(done, count))
    after, failure = caught(WHAT, _judged, plan, progress, done)
    if failure is not None:
        return replace(recovered(plan, progress), failure=plan.team.named(failure))
    return after


def _steps(call: Callable[..., RunState], *arguments: Any) -> RunState:
    return jax.block_until_ready(call(*arguments))


def _next(plan: Plan) -> tuple[Any, Failure | None]:
    ready, failure = has_data(plan)
    return next_batch(plan) if ready else (None, failure)


def _judged(plan: Plan, progress: Progress, done: int) -> Progress:
    """Return to the start if a variable is no longer finite, or if its square overflows."""
    start, solver = progress.step, progress.method.solver
    data, names = bad_data(plan.source.seen(plan.snapshots.taken)), broken_in(plan, progress.run)
    if not plan.snapshots.possible:
        if not names:
            return progress
        return replace(progress, status=diverged(solver, done, names, warmup=True, data=data, kept=False))
    origin = plan.snapshots.run()
    enormous = [] if names else blown_up(solver, progress.run, origin)
    if not (names or enormous):
        return progress
    last, how = start + done, "became infinite or NaN" if names else "grew until its square overflows"
    if names:
        run, last, names, _ = last_finite(plan, progress, origin, start, last, warm=True)
        progress = replace(progress, run=run)
    scene = Scene(plan, progress, warmup=True)
    given, _ = plan.source.again(plan.snapshots.taken, last - start, 1)
    guilty = data is not None and blameworthy(scene, given)
    progress = explained(scene, progress, last - start, names or enormous, data if guilty else None, how=how)
    return back_to(plan, progress, start, origin)
