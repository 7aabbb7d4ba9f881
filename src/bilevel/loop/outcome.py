"""Event for hooks, and result, of a run."""

import time
from functools import partial
from typing import Any

import jax

from bilevel.loop.finite import NORM, blow_up, moved
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.result import Result
from bilevel.loop.status import Code, Status, completed, failed, under_way
from bilevel.loop.trace import Columns

FINE = (Code.COMPLETED, Code.STOPPED, Code.EXHAUSTED)


def event_of(plan: Plan, progress: Progress, rows: Columns) -> Any:
    """Return the event for hooks."""
    from bilevel.loop.diagnose.scene import measured
    from bilevel.loop.hooks.event import Event

    run = progress.run
    return Event(
        step=progress.step,
        total=plan.total,
        run=plan.storage.fetched(run) if plan.hooks.reads_info else run,  # hooks may compute with it
        info=progress.info,
        trace=jax.tree.map(lambda a: a, rows),  # hooks must not change the log's dict
        seconds=time.perf_counter() - plan.began,
        name=plan.solver.name,
        packed=lambda: _packed(plan, progress, under_way(progress.step, plan.total)),
        solver=progress.method.solver,
        measured=partial(measured, plan, progress),
    )


def result_of(plan: Plan, progress: Progress) -> Result:
    """Return the result of a run that has ended."""
    if progress.is_whole:
        progress = progress.but(run=plan.storage.fetched(progress.run))
    status = progress.status or completed(plan.total)
    if progress.failure is not None:
        status = failed(progress.step, progress.failure.what, progress.failure.error)
    elif status.code in FINE and progress.step:
        status = _remarked(plan, progress, status)
    elif status.code is Code.CONVERGED and not progress.largest > 0:
        from bilevel.loop.diagnose.scene import Scene
        from bilevel.loop.diagnose.standstill import never_moved

        status = status.with_note(never_moved(Scene(plan, progress)))
    diverged = status.code is Code.DIVERGED
    if progress.failure is None and not diverged and progress.step:
        status = status.with_note(plan.solver.remark(plan.log.trace))
    suspect = progress.suspect
    if suspect is not None and suspect[1] < progress.step and not (diverged and suspect[0] == NORM):
        status = status.with_suspect(*suspect)
    return _packed(plan, progress, status if diverged else status.with_note(progress.guard.note()))


def _remarked(plan: Plan, progress: Progress, status: Status) -> Status:
    """Return the status of a finite end with a note if f has blown up, or if x does not move."""

    def why_risen() -> str:
        from bilevel.loop.diagnose.divergence import why_risen
        from bilevel.loop.diagnose.scene import Scene

        return why_risen(Scene(plan, progress))

    if note := blow_up(plan.log.trace, progress.step, why_risen):
        return status.with_note(note)
    # Older states serve if the last chunk is too short to show that x does not move.
    ages = [(progress.step - step, x) for step, x in plan.snapshots.xs()]
    count = next((age for age, x in ages if age >= 2 and not moved(x, progress.run.x)), 0)
    if not count:
        return status
    from bilevel.loop.diagnose.scene import Scene
    from bilevel.loop.diagnose.standstill import standstill

    note, converged = standstill(Scene(plan, progress), count, progress.largest)
    if converged and progress.status is None:
        status = completed(plan.total, converged=True)
    return status.with_note(note)


def _packed(plan: Plan, progress: Progress, status: Status) -> Result:
    run = progress.run
    return Result(
        x=run.x,
        y=run.y,
        status=status,
        steps=progress.step,
        trace=jax.tree.map(lambda a: a, plan.log.trace),
        probes=plan.log.probes(plan.hooks.probe_rows()),
        run=plan.storage.fetched(run) if progress.is_whole else run,
        seconds=time.perf_counter() - plan.began,
        feed=plan.source.mark(),
        thin=plan.log.thin,
        halvings=progress.guard.halvings,
        recovery=progress.guard.recovery(plan, progress),
        diagnosis=plan.hooks.diagnosis,
    )
