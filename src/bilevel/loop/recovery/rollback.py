"""Rollback: repeat steps of a run, find its last finite state, and explain why the next one is not finite."""

from dataclasses import replace
from typing import Any

from bilevel.loop.diagnose.divergence import blameworthy, cause
from bilevel.loop.diagnose.scene import Scene
from bilevel.loop.driver import back_to
from bilevel.loop.finite import LOOK_AHEAD, bad_data, narrow
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.state import RunState
from bilevel.loop.status import diverged
from bilevel.loop.trace import Columns, rows_in
from bilevel.solvers.base import Info


def again(
    plan: Plan, progress: Progress, run: RunState, start: int, stop: int, warm: bool = False
) -> tuple[RunState, Info | None]:
    """Repeat the steps from `start` to `stop` from `run`, on the same data.

    The same program repeats them, because another one might round differently.
    """
    method, kept_step = progress.method, plan.kept_step(progress)
    calls, info, run = plan.calls(method), None, plan.lent(run)
    while start < stop:
        given, count = plan.source.again(plan.snapshots.taken, start - kept_step, stop - start)
        if warm:
            run, start = calls.warm_up(method.leaves, run, given, count), start + count
            continue
        fit = method.program.fit(method.leaves, run, given, plan.total)
        if plan.at_once:
            count = min(count, fit.count)
            run, _, info, _ = calls.chunk(method.leaves, run, given, fit.blank, count, plan.keep_info)
        else:
            stored, count = plan.storage.stored(run), 1
            run, _, info = calls.one(method.leaves, stored, given, fit.rows(), 0, plan.keep_info)
        start += count
    return plan.storage.fetched(run), info


def broken_in(plan: Plan, run: RunState) -> list[str]:
    """Return the parts of the run that are not finite."""
    return plan.watch.broken(plan.watch.look(plan.storage.fetched(run)), run)


def last_finite(
    plan: Plan, progress: Progress, good: RunState, low: int, high: int, warm: bool = False
) -> tuple[RunState, int, list[str], Info | None]:
    """Return the last finite run between the steps `low`, where it is `good`, and `high`, by bisection.

    Also return its step, the parts that break in the next one, and its Info.
    """
    info, names = None, broken_in(plan, again(plan, progress, good, low, high, warm)[0])
    while names and high - low > 1:
        middle = (low + high) // 2
        run, seen = again(plan, progress, good, low, middle, warm)
        if broken := broken_in(plan, run):
            high, names = middle, broken
        else:
            good, low, info = run, middle, seen
    return good, low, names, info


def rolled_back(
    plan: Plan, progress: Progress, rows: Columns, broken: list[str], row: int | None
) -> Progress:
    """Return the progress at the last finite state, with the status that explains the divergence.

    The last chunk has the trace `rows`. After it the parts `broken` of the run are not finite; `row` is the
    first one with an outer value that is not finite, if there is one.
    """
    step, solver = progress.step, progress.method.solver
    bad_value = step if row is None else step - rows_in(rows) + row
    data = bad_data(plan.source.seen(plan.snapshots.taken))
    if not plan.snapshots.possible:
        names = broken or ["outer_value"]
        return replace(progress, status=diverged(solver, min(bad_value, step), names, data=data, kept=False))
    good, low = plan.snapshots.run(), plan.kept_step(progress)
    run, last, names, info = (
        last_finite(plan, progress, good, low, step) if broken else (good, step, broken, None)
    )
    loss_first = bad_value < last
    if loss_first:  # the variables are the cause if they soon follow
        (run, info), last = again(plan, progress, good, low, bad_value), bad_value
        _, _, names, _ = last_finite(plan, progress, run, last, last + LOOK_AHEAD)
    progress = replace(back_to(plan, progress, last, run), info=info or progress.info)
    scene = Scene(plan, progress)
    names = names or scene.large() or ["outer_value"]
    guilty = data is not None and blameworthy(scene)
    return explained(scene, progress, last, names, data if guilty else None, loss_first=loss_first)


def explained(
    scene: Scene, progress: Progress, step: int, names: list[str], data: str | None, **how: Any
) -> Progress:
    """Return the progress with the status of a divergence, and its cause."""
    why = cause(scene)
    status = diverged(
        scene.solver,
        step,
        names,
        warmup=scene.warmup,
        data=data,
        # A variable that has run away is the cause, even if another part breaks first.
        because=() if scene.warmup else scene.large(),
        suspicion=why.sentence,
        culprit=why.variable,
        **how,
    )
    return replace(progress, cause=why, bad_data=data, status=status.with_note(narrow(scene.run)))
