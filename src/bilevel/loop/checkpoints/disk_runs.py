"""Run with a folder: it starts, or continues the run in the folder, and saves itself there."""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax

from bilevel.forks import check_fork
from bilevel.loop.checkpoints.contents import check_contents, check_same, into, outline, outlined, unpacked
from bilevel.loop.checkpoints.folder import Damaged, as_folder, numbers_in, read_arrays, read_contents, reason
from bilevel.loop.checkpoints.hook import Checkpoint
from bilevel.loop.checkpoints.origin import check_origin, origin_of
from bilevel.loop.checkpoints.trees import Saved
from bilevel.loop.interrupts import TERMINATED
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.result import Result
from bilevel.loop.single_run import Request, Start, begun, complete, finish_ended, plan_of, resumed
from bilevel.loop.status import Code
from bilevel.types import PyTree

FORGETFUL = (
    "the loader cannot say where it stands, so the checkpoints of this run can be loaded with bl.load but not resumed: "
    "give it get_state and set_state"
)
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
                if not plan.source.movable:
                    warnings.warn(FORGETFUL, RuntimeWarning, stacklevel=3)
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
            f'the same call with resume="auto" continues it.{saver.note}',
            file=sys.stderr,
        )
    raise SystemExit(TERMINATED)


def _folder(resume: str | Path, saver: Checkpoint | None) -> Path:
    if resume == "auto":
        if saver is None:
            raise ValueError(
                'resume="auto" continues the run in the checkpoint folder: pass checkpoint=folder too'
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


class Restored(NamedTuple):
    """Run from a folder."""

    result: Result
    hooks: list[Any]  # their states
    origin: dict[str, Any]
    fresh: tuple[Plan, Progress]  # a new run of the same problem, to compare
    damaged: Sequence[int] = ()  # newer checkpoints


def load(folder: str | Path) -> Result:
    """Return the newest result in a folder of checkpoints; its problem is not needed.

        result = bl.load("runs/first")
        result.x, result.y, result.trace["outer_value"], result.status

    Arrays are NumPy's. Dicts, lists and tuples keep their types. Objects of other types (Equinox modules, the
    solver's state) become their parts, under the same names: `result.x.layers[0].weight`. To continue the
    run, pass `resume=folder` to `bl.run`, which knows the types.

    Args:
        folder: the folder that was passed as `checkpoint=`. A run may be writing into it.
    """
    check_fork()  # Orbax's file format would end a forked process
    path = as_folder(folder, "folder")
    (result, _), _ = _newest(path, lambda number, contents: _unpacked(path, number, contents, []))
    return result


def restore(path: Path, plan: Plan, start: Start) -> Restored:
    """Return the newest whole checkpoint in the types of a new run of the plan.

    Without x0 and y0, their structure comes from the checkpoint.
    """

    def read(number: int, contents: dict[str, Any]) -> Restored:
        begin_at = start
        if start.x0 is None:
            trees = _checked(outlined, contents["origin"]["outline"])
            _check_plain(trees)
            begin_at = start._replace(**dict(zip(("x0", "y0", "model_state"), trees, strict=True)))
        fresh = begun(plan, begin_at)
        template = plan.storage.fetched(fresh[1].run)
        places = check_same(path, contents, template)
        result, hooks = _unpacked(path, number, contents, places)
        return Restored(_checked(into, result, template), hooks, contents["origin"], fresh)

    restored, damaged = _newest(path, read)
    return restored._replace(damaged=damaged)


def _unpacked(
    path: Path, number: int, contents: dict[str, Any], places: list[Any]
) -> tuple[Result, list[Any]]:
    return _checked(lambda: unpacked(contents, read_arrays(path, number, contents, places)))


def _checked(read: Callable[..., Any], *contents: Any) -> Any:
    """Return `read(*contents)`. An error here means damage, even if the checksums are right."""
    try:
        return read(*contents)
    except Damaged:
        raise
    except Exception as error:
        raise Damaged(f"its contents make no sense: {reason(error)}") from error


def _newest(path: Path, read: Callable[[int, dict[str, Any]], Any]) -> tuple[Any, list[int]]:
    """Return `read` of the newest whole checkpoint, and the damaged ones; warn about those."""
    numbers, damaged = numbers_in(path), []
    for number in numbers:
        try:
            contents = read_contents(path, number)
            check_contents(path, contents)
            return read(number, contents), damaged
        except Damaged as error:
            damaged.append(number)
            then = "the one before it is used" if number != numbers[-1] else "there is none before it"
            warnings.warn(
                f"checkpoint {number} in {str(path)!r} is damaged ({error}): {then}",
                RuntimeWarning,
                stacklevel=4,
            )
    if damaged:
        raise ValueError(
            f"no checkpoint in {str(path)!r} is whole ({len(damaged)} damaged): start a new run in another folder"
        )
    raise ValueError(
        f"there is no checkpoint in {str(path)!r}: pass the folder that a run was given as checkpoint="
    )


def _check_plain(start: PyTree) -> None:
    for node in jax.tree.leaves(start, is_leaf=lambda each: isinstance(each, Saved)):
        if isinstance(node, Saved):
            raise ValueError(
                f"x0, y0 or model_state has a {node._kind} in it, a type that a checkpoint cannot create: pass x0= and "
                "y0= (and model_state=) as at the start of the run; only their types are used"
            )
