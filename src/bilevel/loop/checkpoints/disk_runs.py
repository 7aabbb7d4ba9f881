"""Run with a folder: it starts, or continues the run in the folder, and saves itself there."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from bilevel.loop.checkpoints.contents import outline
from bilevel.loop.checkpoints.folder import numbers_in
from bilevel.loop.checkpoints.hook import Checkpoint
from bilevel.loop.checkpoints.origin import check_origin, origin_of
from bilevel.loop.checkpoints.reader import as_folder, restore
from bilevel.loop.interrupts import TERMINATED
from bilevel.loop.result import Result
from bilevel.loop.single_run import Request, Start, begun, complete, finish_ended, plan_of, resumed
from bilevel.loop.status import Code

ENDED = (Code.CONVERGED, Code.STOPPED, Code.DIVERGED)  # the same run would end like this again


def run_on_disk(
    request: Request, saver: Checkpoint | None, resume: Result | str | Path | None, start: Start, steps: int
) -> Result:
    """Run and save, or continue a saved run, or both."""
    earlier, auto = resume if isinstance(resume, Result) else None, resume == "auto"
    folder = None if resume is None or isinstance(resume, Result) else _folder(resume, saver)
    if saver is not None:
        saver.take(request.team, going_on=auto or folder == saver.path)  # now no other run writes there
    try:
        restored, origin, ended, note = None, None, False, ""
        if folder is not None and numbers_in(folder):
            restored = restore(folder, plan_of(request, 1, None), start)
            earlier, before, origin = restored.result, restored.origin, origin_of(*restored.fresh, start)
            if auto:
                note = check_origin(folder, before, origin)
                steps = _left(folder, earlier, steps)
                ended = _has_ended(earlier, steps, before["stops"] == origin["stops"])
            origin |= {name: before[name] for name in ("start", "data", "outline", "seed", "warmup")}
        plan = plan_of(request, steps, earlier)
        plan, progress = begun(plan, start) if earlier is None else resumed(plan, earlier)
        if origin is None:
            origin = origin_of(plan, progress, start)
            if earlier is not None:  # a result in memory has no record of its origin
                unknown = ("start", "seed", "warmup", *["data"] * origin["loader"])
                trees = outline((earlier.x, earlier.y, earlier.model_state))
                origin |= dict.fromkeys(unknown) | {"outline": trees}
        if restored is not None:
            _remind(plan.hooks.hooks, restored.hooks)
        if earlier is not None and ended:
            result = finish_ended(plan, progress, earlier)
        else:
            if saver is not None:
                damaged = restored.damaged if restored is not None and folder == saver.path else ()
                saver.prepare(origin, plan.hooks.hooks, damaged)
                plan.interrupts.heed_term()
                _warn_of_forgetful_loader(plan.source.movable)
            result = complete(plan, progress, start.warmup if earlier is None else 0)
        result = replace(result, status=result.status.with_note(note))
    finally:
        if saver is not None:
            saver.release()
    if saver is not None and plan.interrupts.terminated:
        _leave(result, saver, request.team.leads)
    return result


def _leave(result: Result, saver: Checkpoint, says: bool) -> NoReturn:
    if says:
        where = "nothing could be saved" if result.steps else "before there was anything to save"
        if saver.saved is not None:
            where = f"saved in {str(saver.path)!r}"
        print(
            f"bilevel: ended by SIGTERM after {result.steps} steps, {where};",
            f'the same call with resume="auto" goes on.{saver.note}',
            file=sys.stderr,
        )
    raise SystemExit(TERMINATED)


def _warn_of_forgetful_loader(movable: bool) -> None:
    if not movable:
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
