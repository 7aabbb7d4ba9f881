"""Driver: a run is a fold of its stages. Each stage maps the plan and the progress to new progress.

    for progress in stages(plan, progress, fit, warmup): ...

`bl.run` and `bl.sweep` both use it. Their plans differ in the stages `take`, `judge` and `again`, and in the
policies for hooks, devices, snapshots and divergence.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from bilevel.loop.chunks import Chunk, Pace
from bilevel.loop.errors import Failure, caught
from bilevel.loop.finite import bad_metric, first_bad_row, largest_measure
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.status import Code, exhausted, interrupted
from bilevel.loop.trace import Columns

DECIDES, SEES, LAST = range(3)  # the order in which hooks are called


def drive(plan: Plan, progress: Progress, fit: Any, warmup: int = 0) -> Progress:
    """Return the progress at the end of the run, however it ends."""
    try:
        for after in stages(plan, progress, fit, warmup):
            progress = after
    except KeyboardInterrupt:
        plan.team.lose()  # the others wait within a step and cannot receive a message
        progress = recovered(plan, progress)
        if not progress.is_whole:
            raise
        return replace(progress, status=interrupted(progress.step))
    except (ConnectionError, jax.errors.JaxRuntimeError) as error:
        if not plan.team.several:
            raise
        return replace(progress, failure=plan.team.named(Failure("the run", error)))
    return progress


def stages(plan: Plan, progress: Progress, fit: Any, warmup: int) -> Iterator[Progress]:
    """Yield the progress after each stage: the warm-up; then each chunk's steps, judgement and hooks."""
    if warmup:
        from bilevel.loop.warm_up import warm_up  # imported only for a warm-up

        again = True
        while again:
            yield (progress := warm_up(plan, progress, warmup))
            if progress.failure is not None:
                return
            progress, again = retried(plan, progress)
            if again:
                fit, progress = fit_of(plan, progress)
                if progress.failure is not None:
                    yield progress
                    return
    yield (progress := plan.hooks.begin(plan, progress))
    if progress.failure is not None or fit is None:
        return
    pace = Pace(fit.seconds, plan.every)
    while progress.step < plan.total and progress.status is None:
        if plan.team.several:
            ready, failure = has_data(plan)
            if not ready:
                yield without_data(plan, progress, failure)
                return
        wanted = length(plan, progress, fit, pace)
        yield (progress := kept(plan, progress))
        began, start = time.perf_counter(), progress.step
        chunk = plan.take(plan, progress, fit, wanted)
        if not isinstance(chunk, Chunk):
            yield replace(recovered(plan, progress), failure=chunk)
            return
        pace.took(chunk.done, time.perf_counter() - began, compiled=not fit.compiled)
        fit.timed(pace.seconds_per_step)
        progress = chunk.progress
        if chunk.done:
            yield (progress := judged(plan, chunk, start))
            del chunk
            yield (progress := plan.hooks.tell(plan, progress, start, [DECIDES]))
            if progress.guard.halves and progress.status is not None:
                progress = shared_failure(plan, progress)  # before only some processes go back
            if progress.failure is None:
                progress, again = retried(plan, progress)
                if again:
                    yield (progress := forgotten(plan, progress))
                    other, progress = fit_of(plan, progress)
                    fit = other or fit
                    if progress.failure is None:
                        continue
            yield (progress := plan.hooks.tell(plan, progress, start, [SEES, LAST]))
        yield (progress := ended(plan, shared_failure(plan, progress)))
        if progress.failure is not None:
            return


def fit_of(plan: Plan, progress: Progress) -> tuple[Any, Progress]:
    """Return the program's data for the shapes of the next step. Raise if the step does not fit.

    It is `None` if there are no data. Then the progress has the status, or the loader's error.
    """
    ready, failure = has_data(plan)
    if failure is not None:
        return None, replace(progress, failure=failure)
    if not ready:
        return None, replace(progress, status=exhausted(progress.step, plan.total))
    left, method = plan.total - progress.step, progress.method
    fit = method.program.fit(method.leaves, progress.run, plan.source.peek(), left)
    plan.log.expect(fit.row)
    return fit, progress


def has_data(plan: Plan) -> tuple[bool, Failure | None]:
    """Return whether all processes have data for a step, and the loader's error."""
    if plan.source.stream is not None:
        return True, None
    if plan.team.several:
        from bilevel.loop.devices.processes import have_data

        return have_data(plan)
    given, failure = caught("the loader", plan.source.peek)
    return given is not None, plan.source.blamed(failure)


def without_data(plan: Plan, progress: Progress, failure: Failure | None) -> Progress:
    """End the run where a process has no data for the next step."""
    asked = plan.interrupts.asked
    over = interrupted(progress.step) if asked else exhausted(progress.step, plan.total)
    return replace(progress, failure=failure, status=over if failure is None else None)


def length(plan: Plan, progress: Progress, fit: Any, pace: Pace) -> int:
    """Return the number of steps of the next chunk."""
    left = plan.total - progress.step
    by_clock = plan.source.stream is not None or plan.every is not None
    paced = pace.steps(left, progress.step) if by_clock else left
    wanted = min(paced, fit.count, plan.hooks.steps_to_next_mark(progress.step, left))
    # The first process has the clock. With loaders, all processes wait for each other at every step.
    return plan.team.first(wanted if plan.source.stream is not None else 1) if plan.team.several else wanted


def kept(plan: Plan, progress: Progress) -> Progress:
    """Renew the state to return to, and free the last Info before the next one."""
    plan.snapshots.renew(progress.run, progress.step, progress.guard.renews(progress.step))
    plan.log.settle(plan.kept_step(progress))
    return progress.but(info=None, guard=progress.guard.kept(plan.snapshots.step == progress.step))


def judged(plan: Plan, chunk: Chunk, start: int) -> Progress:
    """Add the chunk's rows to the trace. Return to an earlier state if something is no longer finite."""
    plan.log.add(chunk.rows, start)
    largest = max(chunk.progress.largest, largest_measure(chunk.rows))
    progress = chunk.progress.but(step=start + chunk.done, largest=largest)
    if progress.suspect is None and (found := bad_metric(chunk.rows)) is not None:
        progress = replace(progress, suspect=(found[0], start + found[1]))
    progress = plan.judge(plan, progress, chunk.rows, chunk.flags)
    return (
        replace(progress, guard=progress.guard.saw(plan.log.rows(start)))
        if progress.guard.halves
        else progress
    )


def judge(plan: Plan, progress: Progress, rows: Columns, flags: np.ndarray) -> Progress:
    """Return to the last state that was finite, if the run's state or its outer value no longer is."""
    broken, row = plan.watch.broken(flags, progress.run), first_bad_row(rows)
    if not broken and row is None:
        return progress
    from bilevel.loop.recovery.rollback import rolled_back

    return rolled_back(plan, progress, rows, broken, row)


def retried(plan: Plan, progress: Progress) -> tuple[Progress, bool]:
    """Return an earlier state with smaller steps after a divergence, if possible, and whether it is."""
    after = progress.guard.retry(plan, progress)
    return after, progress.status is not None and after.status is None


def forgotten(plan: Plan, progress: Progress) -> Progress:
    """Drop the observations of undone steps."""
    plan.hooks.forget(progress.step)
    suspect = progress.suspect
    suspect = suspect if suspect is not None and suspect[1] < progress.step else None
    return replace(progress, info=None, suspect=suspect, largest=largest_measure(plan.log.trace))


def shared_failure(plan: Plan, progress: Progress) -> Progress:
    """End the run in all processes if something raised in one."""
    return replace(progress, failure=plan.team.shared(progress.failure)) if plan.team.several else progress


def ended(plan: Plan, progress: Progress) -> Progress:
    """End the run here after Ctrl-C or the loader's end."""
    if progress.failure is not None:
        return progress
    plan.interrupts.agree(plan.team)
    if progress.status is None and plan.interrupts.asked:
        return replace(progress, status=interrupted(progress.step))
    if progress.status is None and plan.source.ended and not plan.team.several:
        return replace(progress, status=exhausted(progress.step, plan.total))
    return progress


def back_to(plan: Plan, progress: Progress, step: int, run: Any) -> Progress:
    """Return to `run` after `step` steps: cut the trace and give later data back."""
    plan.source.give_back(plan.snapshots.drop(len(plan.snapshots.taken) - (step - plan.kept_step(progress))))
    plan.log.keep(step)
    return replace(progress, run=run, step=step)


def recovered(plan: Plan, progress: Progress) -> Progress:
    """Return to the last complete state after an error within a chunk."""
    if plan.snapshots.possible:
        return back_to(plan, progress, plan.kept_step(progress), plan.snapshots.run())
    return replace(progress, torn=plan.snapshots.donates)


def has_diverged(progress: Progress) -> bool:
    return progress.status is not None and progress.status.code is Code.DIVERGED
