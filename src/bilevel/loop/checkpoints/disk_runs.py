"""Run with a folder: it starts, or continues the run in the folder, and saves itself there."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from bilevel.loop.checkpoints.contents import outline
from bilevel.loop.checkpoints.folder import numbers_in
from bilevel.loop.checkpoints.hook import Checkpoint
from bilevel.loop.checkpoints.origin import Origin, check_origin
from bilevel.loop.checkpoints.reader import as_folder, restore
from bilevel.loop.interrupts import TERMINATED
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.result import Result
from bilevel.loop.single_run import Request, Start, begun, complete, finish_ended, plan_of, resumed
from bilevel.loop.state import RunState
from bilevel.loop.status import Code
from bilevel.types import PyTree

ENDED = (Code.CONVERGED, Code.STOPPED, Code.DIVERGED)  # the same run would end like this again


def run_on_disk(
    request: Request, saver: Checkpoint | None, resume: Result | str | Path | None, start: Start, steps: int
) -> Result:
    """Run and save, or continue a saved run, or both."""
    auto, team = resume == "auto", request.team
    folder = None if resume is None or isinstance(resume, Result) else _folder(resume, saver)
    if saver is not None:
        saver.take(team, going_on=auto or folder == saver.path)  # from here on, no other run writes there
    try:
        earlier = resume if isinstance(resume, Result) else None
        restored, origin, ended, note = None, None, False, ""
        if folder is not None and numbers_in(folder):
            fresh = plan_of(request, 1, None)
            restored, before, fresh = _restored(folder, fresh, start)
            earlier, origin = restored.result, _origin(*fresh, start)
            if auto:
                note = check_origin(folder, before, origin)
                steps = _left(folder, earlier, steps)
            ended = auto and _has_ended(earlier, steps, before["stops"] == origin["stops"])
            origin |= {name: before[name] for name in ("start", "data", "outline", "seed", "warmup")}
        plan = plan_of(request, steps, earlier)
        plan, progress = begun(plan, start) if earlier is None else resumed(plan, earlier)
        if earlier is None:
            origin = _origin(plan, progress, start) | {"outline": outline(start[:3])}
        elif origin is None:  # a result in memory has no record of its origin
            trees = outline((earlier.x, earlier.y, earlier.model_state))
            origin = _origin(plan, progress, start)
            origin |= dict.fromkeys(("start", "seed", "warmup", *["data"] * origin["loader"])) | {
                "outline": trees
            }
        if restored is not None:
            _remind(plan.hooks.hooks, restored.hooks)
        if earlier is not None and ended:
            return _noted(finish_ended(plan, progress, earlier), note)
        if saver is not None:
            damaged = restored.damaged if restored is not None and folder == saver.path else ()
            saver.prepare(origin, plan.hooks.hooks, damaged)
            plan.interrupts.heed_term()
            _warn_of_forgetful_loader(plan)
        result = _noted(complete(plan, progress, start.warmup if earlier is None else 0), note)
    finally:
        if saver is not None:
            saver.release()
    if plan.interrupts.terminated:
        _leave(result, saver, team.leads)
    return result


def _restored(folder: Path, plan: Plan, start: Start) -> tuple[Any, Any, tuple[Plan, Progress]]:
    """Return the saved run in the folder, its origin, and a new run's plan and progress for comparison."""
    begins: list[tuple[Plan, Progress]] = []

    def begin(x0: PyTree, y0: PyTree, model_state: PyTree) -> RunState:
        begins[:] = [begun(plan, start._replace(x0=x0, y0=y0, model_state=model_state))]
        return plan.storage.fetched(begins[0][1].run)

    restored, before = restore(folder, begin, *start[:3])
    return restored, before, begins[0]


def _noted(result: Result, note: str) -> Result:
    return replace(result, status=result.status.with_note(note))


def _leave(result: Result, saver: Checkpoint | None, says: bool) -> NoReturn:
    if not says:
        raise SystemExit(TERMINATED)
    where = "nothing could be saved" if result.steps else "before there was anything to save"
    if saver is not None and saver.saved is not None:
        where = f"saved in {str(saver.path)!r}"
    note = "" if saver is None else saver.note
    print(
        f"bilevel: ended by SIGTERM after {result.steps} steps, {where};",
        f'the same call with resume="auto" goes on.{note}',
        file=sys.stderr,
    )
    raise SystemExit(TERMINATED)


def _warn_of_forgetful_loader(plan: Plan) -> None:
    if not plan.source.movable:
        warnings.warn(
            "the loader cannot say where it stands, so the checkpoints of this run can be loaded with bl.load but not "
            "resumed: give it get_state and set_state",
            RuntimeWarning,
            stacklevel=4,
        )


def _folder(resume: str | Path, saver: Checkpoint | None) -> Path:
    if resume == "auto":
        if saver is None:
            raise ValueError(
                'resume="auto" goes on with the run in the checkpoint folder: pass checkpoint=folder too'
            )
        return saver.path
    path = as_folder(resume, "resume")
    if not numbers_in(path):
        raise ValueError(
            f"resume={str(resume)!r} has no checkpoint in it: pass the folder that a run was given as checkpoint="
        )
    return path


def _origin(plan: Plan, progress: Progress, start: Start) -> dict[str, Any]:
    run, source, hooks = plan.storage.fetched(progress.run), plan.source, plan.hooks.hooks
    watched = any(hook.watches_probes for hook in hooks)
    found = [hook.decider(watched) for hook in sorted(hooks, key=lambda hook: hook.measures)]
    return asdict(
        Origin.of(
            plan.solver,
            (run.x, run.y, run.model),
            source.peek(),
            source.stream is None,
            plan.request.record,
            start.seed,
            start.warmup,
            [hook for hook in found if hook is not None],
            plan.guard.halves,
        )
    )


def _left(path: Path, result: Result, steps: int) -> int:
    """Return how many of all the steps remain."""
    if result.steps > steps:
        raise ValueError(
            f'the run in {str(path)!r} has taken {result.steps} steps already, and with resume="auto", steps={steps} '
            f"is how many to take in all: pass steps={result.steps} or more, or read it with bl.load"
        )
    return steps - result.steps


def _has_ended(result: Result, left: int, same_stops: bool) -> bool:
    """Return whether the run in the folder needs no more steps: it has taken all, or it would end again."""
    done = result.status.code is Code.COMPLETED and left == 0
    return done or (result.status.code in ENDED and same_stops)


def _remind(hooks: Sequence[Any], states: list[Any]) -> None:
    """Restore the states of hooks, in order among the hooks of each type."""
    waiting = [hook for hook in hooks if hook.remembers]
    for kind, state in states:
        hook = next((hook for hook in waiting if type(hook.subject).__name__ == kind), None)
        if hook is not None and state is not None:
            waiting.remove(hook)
            hook.set_state(state)
