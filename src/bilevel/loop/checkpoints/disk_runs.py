"""A run with a folder: it begins anew, or goes on where the run in the folder stands, and saves itself there."""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from bilevel.loop.checkpoints.contents import outline
from bilevel.loop.checkpoints.folder import numbers_in
from bilevel.loop.checkpoints.hook import Checkpoint
from bilevel.loop.checkpoints.origin import Origin, check_origin
from bilevel.loop.checkpoints.reader import as_folder, restore
from bilevel.loop.devices.offload import fetched
from bilevel.loop.devices.processes import Team
from bilevel.loop.diagnose.hook import Diagnose
from bilevel.loop.hooks.base import FunctionHook
from bilevel.loop.hooks.early_stopping import EarlyStopping
from bilevel.loop.hooks.live_view import Live, Progress
from bilevel.loop.hooks.probe import Probe
from bilevel.loop.interrupts import TERMINATED
from bilevel.loop.result import Result
from bilevel.loop.session import Session
from bilevel.loop.state import RunState
from bilevel.loop.status import Code
from bilevel.types import PyTree
from bilevel.words import shown

ENDED = (Code.CONVERGED, Code.STOPPED, Code.DIVERGED)  # the same run would end so again


class Start(NamedTuple):
    """What a new run begins with."""

    x0: PyTree
    y0: PyTree
    model_state: PyTree
    seed: Any
    warmup: int


def saver_among(
    hooks: Sequence[Any], checkpoint: Any, save_every: Any
) -> tuple[list[Any], Checkpoint | None]:
    """The hooks, with the one that `checkpoint=` is short for; and the one among them that saves."""
    hooks = list(hooks)
    if checkpoint is not None:
        hooks.append(Checkpoint(checkpoint, save_every=save_every))
    elif save_every is not None:
        raise ValueError(
            f"save_every={shown(save_every)} says how often to save, but not where: pass checkpoint=folder"
        )
    savers = [hook for hook in hooks if isinstance(hook, Checkpoint)]
    if len(savers) > 1:
        raise ValueError("a run saves into one folder: pass checkpoint= or one bl.hooks.Checkpoint, not both")
    return hooks, savers[0] if savers else None


def run_on_disk(
    session_of: Callable[[int, Result | None], Session],
    saver: Checkpoint | None,
    resume: Result | str | Path | None,
    start: Start,
    steps: int,
    team: Team,
) -> Result:
    """A run that saves itself, or that goes on from what was saved, or both."""
    auto = resume == "auto"
    folder = None if resume is None or isinstance(resume, Result) else _folder(resume, saver)
    if saver is not None:
        saver.take(team, going_on=auto or folder == saver.path)  # nobody else writes there from here on
    try:
        earlier = resume if isinstance(resume, Result) else None
        restored, origin, ended, note = None, None, False, ""
        if folder is not None and numbers_in(folder):
            fresh = session_of(1, None)
            restored, before = restore(folder, lambda *trees: _begun(fresh, trees, start.seed), *start[:3])
            earlier, origin = restored.result, _origin(fresh, start)
            if auto:
                note = check_origin(folder, before, origin)
                steps = _left(folder, earlier, steps)
            ended = auto and _has_ended(earlier, steps, before["stops"] == origin["stops"])
            origin |= {name: before[name] for name in ("start", "data", "outline", "seed", "warmup")}
        session = session_of(steps, earlier)
        if earlier is None:
            _begun(session, start[:3], start.seed)
            origin = _origin(session, start) | {"outline": outline(start[:3])}
        elif origin is None:  # a result in memory does not say what it began from
            trees = outline((earlier.x, earlier.y, earlier.model_state))
            origin = _origin(session, start)
            origin |= dict.fromkeys(("start", "seed", "warmup", *["data"] * origin["loader"])) | {
                "outline": trees
            }
        if restored is not None:
            _remind(session.audience.hooks, restored.hooks)
        if earlier is not None and ended:
            return _noted(session.ended(earlier), note)
        if saver is not None:
            damaged = restored.damaged if restored is not None and folder == saver.path else ()
            saver.prepare(origin, session.audience.hooks, damaged)
            session.heed_term()
            _warn_of_forgetful_loader(session)
        result = _noted(session.go(start.warmup if earlier is None else 0), note)
    finally:
        if saver is not None:
            saver.release()
    if session.course.interrupts.terminated:
        _leave(result, saver, team.leads)
    return result


def _noted(result: Result, note: str) -> Result:
    return replace(result, status=result.status.with_note(note))


def _leave(result: Result, saver: Checkpoint | None, says: bool) -> NoReturn:
    """As SIGTERM asked."""
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


def _warn_of_forgetful_loader(session: Session) -> None:
    if not session.course.source.movable:
        warnings.warn(
            "the loader cannot say where it stands, so the checkpoints of this run can be loaded with bl.load but not "
            "resumed: give it get_state and set_state",
            RuntimeWarning,
            stacklevel=4,
        )


def _folder(resume: str | Path, saver: Checkpoint | None) -> Path:
    """The folder to go on from."""
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


def _begun(session: Session, trees: tuple[PyTree, ...], seed: Any) -> RunState:
    x0, y0, model_state = trees
    session.begin(x0, y0, seed, model_state)
    return fetched(session.course.run)


def _origin(session: Session, start: Start) -> dict[str, Any]:
    run, source = fetched(session.course.run), session.course.source
    hooks = session.audience.hooks
    stopping = [
        hook for hook in hooks if not isinstance(hook, Checkpoint | Progress | Live | Probe | Diagnose)
    ]
    if any(isinstance(hook, EarlyStopping) for hook in hooks):  # which may watch what a probe returns
        stopping += [FunctionHook(hook.probe) for hook in hooks if isinstance(hook, Probe)]
    trees = run.x, run.y, run.model
    return asdict(
        Origin.of(
            session.solver,
            trees,
            source.peek(),
            source.stream is None,
            session.record,
            start.seed,
            start.warmup,
            stopping,
            session.guard.halve,
        )
    )


def _left(path: Path, result: Result, steps: int) -> int:
    """How many of all the steps are still to be taken."""
    if result.steps > steps:
        raise ValueError(
            f'the run in {str(path)!r} has taken {result.steps} steps already, and with resume="auto", steps={steps} '
            f"is how many to take in all: pass steps={result.steps} or more, or read it with bl.load"
        )
    return steps - result.steps


def _has_ended(result: Result, left: int, same_stops: bool) -> bool:
    """Whether the run in the folder needs no more steps: it has taken all, or the same would end it again."""
    done = result.status.code is Code.COMPLETED and left == 0
    return done or (result.status.code in ENDED and same_stops)


def _remind(hooks: Sequence[Any], states: list[Any]) -> None:
    """Gives hooks back what they remembered: the first of a kind to the first of that kind, and so on."""
    waiting = [hook for hook in hooks if hook.remembers]
    for kind, state in states:
        hook = next((hook for hook in waiting if type(hook.subject).__name__ == kind), None)
        if hook is not None and state is not None:
            waiting.remove(hook)
            hook.set_state(state)
