"""Read the newest whole checkpoint of a folder, and check that it is of the right run."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bilevel.checks import check_path
from bilevel.forks import check_fork
from bilevel.loop.checkpoints.contents import FORMAT, into, layout, made_by, outlined, unpacked
from bilevel.loop.checkpoints.folder import Damaged, numbers_in, orbax, read_arrays, read_contents, reason
from bilevel.loop.checkpoints.trees import Saved
from bilevel.loop.checkpoints.types import CONTENTS, ORIGIN, check_types
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.result import Result
from bilevel.loop.single_run import Start, begun
from bilevel.loop.state import RunState, difference
from bilevel.types import PyTree
from bilevel.words import shown


class Restored(NamedTuple):
    """Run from a folder."""

    result: Result
    hooks: list[Any]  # their states
    origin: dict[str, Any]
    fresh: tuple[Plan, Progress]  # a new run of the same problem, to compare
    damaged: list[int] = []  # noqa: RUF012  # newer checkpoints


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
        shapes, places = layout(template)
        _check_same(path, contents, template, shapes)
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


def as_folder(folder: Any, name: str) -> Path:
    """Return an absolute path, so that a program may change its working directory."""
    if not isinstance(folder, str | Path) or not str(folder) or "\0" in str(folder):
        raise TypeError(f'{name} must be a folder, such as "runs/first", not {shown(folder)}')
    try:
        path = check_path(folder, name).expanduser().absolute()
        str(path).encode()  # Orbax wants its names in UTF-8
        is_file = path.exists() and not path.is_dir()
    except (OSError, RuntimeError, UnicodeError) as error:
        raise ValueError(
            f"{name}={str(folder)!r} cannot be a folder ({reason(error)}): pass another"
        ) from error
    if is_file:
        raise ValueError(f"{name}={str(folder)!r} is a file: pass a folder")
    return path


def _newest(path: Path, read: Callable[[int, dict[str, Any]], Any]) -> tuple[Any, list[int]]:
    """Return `read` of the newest whole checkpoint, and the damaged ones; warn about those."""
    orbax()
    numbers, damaged = numbers_in(path), []
    for number in numbers:
        try:
            contents = read_contents(path, number)
            check_format(path, contents)
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


def check_format(path: Path, contents: Any) -> None:
    """Raise `Damaged` unless these are the contents of a checkpoint, `ValueError` if of another format."""
    if not isinstance(contents, dict) or not contents.keys() >= {"format", "origin", *CONTENTS}:
        raise Damaged("its contents do not belong to a checkpoint")
    if contents["format"] != FORMAT:
        raise ValueError(
            f"the checkpoints in {str(path)!r} have format {contents['format']!r}, and this version of bilevel "
            f"({made_by()['bilevel']}) reads format {FORMAT}: read them with the version that wrote them"
        )
    check_types(contents, CONTENTS)
    check_types(contents["origin"], ORIGIN)


def _check_same(path: Path, contents: dict[str, Any], template: RunState, shapes: list[list[Any]]) -> None:
    """Raise if a checkpoint has another library version, solver, problem or data shape."""
    then, now = contents["made_by"]["bilevel"], made_by()["bilevel"]
    found = f"it was written by bilevel {then}, this is {now}" if then != now else None
    found = found or difference(tuple(map(tuple, contents["fingerprint"])), template.fingerprint)
    if found is None and contents["arrays"][: len(shapes)] != shapes:
        found = "the solver's state had other arrays"
    if found is not None:
        raise ValueError(
            f"the checkpoints in {str(path)!r} are of another run: {found}. Pass another folder, or start a new run "
            f"from x0=bl.load({str(path)!r}).x and its y"
        )


def _check_plain(start: PyTree) -> None:
    for node in jax.tree.leaves(start, is_leaf=lambda each: isinstance(each, Saved)):
        if isinstance(node, Saved):
            raise ValueError(
                f"x0, y0 or model_state has a {node._kind} in it, a type that a checkpoint cannot create: pass x0= and "
                "y0= (and model_state=) as at the start of the run; only their types are used"
            )
