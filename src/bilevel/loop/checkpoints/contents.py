"""Contents of a checkpoint: the result so far, the states of the hooks, and the origin of the run."""

import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from bilevel.loop.checkpoints.folder import Damaged
from bilevel.loop.checkpoints.trees import flatten, is_key, unflatten, words_of
from bilevel.loop.data.loader_buffer import Mark
from bilevel.loop.devices.state_sharding import put
from bilevel.loop.recovery.halving import Place, Recovery, Seen
from bilevel.loop.result import Result
from bilevel.loop.state import RunState, difference
from bilevel.loop.status import Code, Status
from bilevel.types import PyTree

FORMAT = 3

# A type, or `T | U` of types, exactly; [T], a list of a T; (T, U), a list of a T and a U; {"a": T}, a dict with
# only these keys; or a test of a value.
Type = Any


def _fits(value: Any, type_: Type) -> bool:
    if isinstance(type_, type | UnionType):
        return type(value) in (get_args(type_) or (type_,))
    if isinstance(type_, list):
        return isinstance(value, list) and all(_fits(each, type_[0]) for each in value)
    if isinstance(type_, tuple):
        return isinstance(value, list) and len(value) == len(type_) and all(map(_fits, value, type_))
    if isinstance(type_, dict):
        same = isinstance(value, dict) and value.keys() == type_.keys()
        return same and all(_fits(value[name], type_[name]) for name in type_)
    return type_(value)


_or_none = lambda type_: lambda value: value is None or _fits(value, type_)
_dict_of = lambda type_: (
    lambda value: isinstance(value, dict) and all(_fits(each, type_) for each in value.values())
)
_whole = lambda least: lambda value: type(value) is int and value >= least
_any = lambda value: True
_seconds = lambda value: _fits(value, int | float) and math.isfinite(value) and value >= 0
_factor = lambda value: _seconds(value) and value > 0
_shapes = [([_whole(0)], str)]
_real = int | float  # also NaN, as the mean of an array that overflows
_figures = [(_real, _real, _real, _real, _real)]
_word = bool | int | float | str
_part = lambda value: _fits(value, _word | None) or _fits(value, _figures)

CONTENTS: dict[str, Type] = {
    "format": _any,
    "origin": _any,  # of `ORIGIN`
    "steps": _whole(0),
    "thin": _or_none(_whole(1)),
    "halvings": [(_whole(0), _factor, _factor)],
    "seconds": _seconds,
    "status": {
        "code": lambda value: value in [code.value for code in Code],
        "message": str,
        "variable": str | None,
        "step": _or_none(_whole(0)),
    },
    "order": _or_none([[_word]]),  # the keys of the samplers of data in memory; None for a loader
    "fingerprint": [(str, str)],
    "made_by": lambda value: _dict_of(str)(value) and "bilevel" in value,
    "tree": dict,
    "arrays": _shapes,
    "files": _dict_of(_whole(0)),
}

ORIGIN: dict[str, Type] = {  # `None`: unknown
    "numbers": _dict_of(_part),  # the solver's step sizes and other numbers
    "reads": _dict_of([(str, str, _part)]),  # what each function reads, as (path, kind, figure)
    "hidden": [str],  # values without a figure that functions read
    "loader": bool,
    "start": _or_none(_figures),  # of x0, y0 and the model state
    "data": _or_none(_figures),  # of data in memory, or of a loader's first batch
    "seed": int | None,
    "warmup": _or_none(_whole(0)),
    "stops": [str],  # hooks and policies that may end the run, which a resumed run may change
    "outline": {"tree": _any, "shapes": _shapes},  # of x0, y0 and the model state
}


def check_contents(path: Path, contents: Any) -> None:
    """Raise `Damaged` unless these are the contents of a checkpoint, `ValueError` if of another format."""
    _check_names(contents, CONTENTS)
    if contents["format"] != FORMAT:
        raise ValueError(
            f"the checkpoints in {str(path)!r} have format {contents['format']!r}, and this version of bilevel "
            f"({made_by()['bilevel']}) reads format {FORMAT}: read them with the version that wrote them"
        )
    _check_names(contents["origin"], ORIGIN)
    for values, types in ((contents, CONTENTS), (contents["origin"], ORIGIN)):
        for name, type_ in types.items():
            if not _fits(values[name], type_):
                raise Damaged(f"{name!r} in its contents has a wrong type or value")


def _check_names(values: Any, types: dict[str, Type]) -> None:
    if not isinstance(values, dict) or not values.keys() >= types.keys():
        raise Damaged("its contents do not belong to a checkpoint")


def check_same(path: Path, contents: dict[str, Any], template: RunState) -> list[Any]:
    """Raise if a checkpoint has another library version, solver, problem or data shape.

    Return the shardings of the run's arrays, in the order of a checkpoint; `None` for random keys.
    """
    leaves = jax.tree.leaves(_parts(template))
    shapes = [[list(leaf.shape), str(leaf.dtype)] for leaf in map(words_of, leaves)]
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
    return [None if is_key(leaf) else leaf.sharding for leaf in leaves]


def made_by() -> dict[str, str]:
    """Return the versions and the device, on which the bits of a run may depend."""
    import bilevel

    return {"bilevel": bilevel.__version__, "jax": jax.__version__, "device": jax.devices()[0].device_kind}


def outline(tree: PyTree) -> dict[str, Any]:
    """Return the structure of a tree without its numbers."""
    description, arrays = flatten(tree)
    return {"tree": description, "shapes": [[list(jnp.shape(a)), str(jnp.result_type(a))] for a in arrays]}


def outlined(outline: dict[str, Any]) -> PyTree:
    """Return a tree of zeros with this structure."""
    return unflatten(outline["tree"], [jnp.zeros(shape, dtype) for shape, dtype in outline["shapes"]])


def packed(
    result: Result, hooks: Sequence[Any], origin: dict[str, Any]
) -> tuple[dict[str, Any], list[Any], str]:
    """Return plain data and arrays, and a warning if the state of a hook cannot be saved."""
    remembered, left_out = [], ""
    for hook in hooks:
        try:
            state = hook.get_state() if hook.remembers else None
            flatten(state)
        except Exception as error:
            state, left_out = None, f"the memory of {type(hook.subject).__name__} cannot be saved ({error})"
        remembered.append([type(hook.subject).__name__, state])
    loader = result.feed if isinstance(result.feed, Mark) else None
    # The run comes first, so that its arrays have the first numbers.
    run, recovery = _parts(result.run), _recovery(result, loader)
    tree, arrays = flatten([run, result.trace, result.probes, remembered, _position(loader), recovery])
    contents = {
        "format": FORMAT,
        "made_by": made_by(),
        "fingerprint": [list(pair) for pair in result.run.fingerprint],
        "origin": origin,
        "steps": result.steps,
        "thin": result.thin,
        "halvings": [list(halving) for halving in result.halvings],
        "seconds": result.seconds,
        "status": asdict(result.status),
        "order": None if isinstance(result.feed, Mark) else [list(key) for key in result.feed or ()],
        "tree": tree,
    }
    return contents, [words_of(array) for array in arrays], left_out


def unpacked(contents: dict[str, Any], arrays: list[Any]) -> tuple[Result, list[Any]]:
    """Return the result, in plain containers, and the states of the hooks."""
    # Checkpoints of earlier versions have no recovery.
    parts, trace, probes, hooks, loader, *recovery = unflatten(contents["tree"], arrays)
    fingerprint = tuple(map(tuple, contents["fingerprint"]))
    run = RunState(**parts, fingerprint=fingerprint)
    status = Status(**{**contents["status"], "code": Code(contents["status"]["code"])})
    result = Result(
        x=run.x,
        y=run.y,
        status=status,
        steps=contents["steps"],
        trace=trace,
        probes=probes,
        run=run,
        seconds=contents["seconds"],
        thin=contents["thin"],
        halvings=tuple(map(tuple, contents["halvings"])),
        feed=tuple(map(tuple, contents["order"])) if loader is None else Mark(None, **loader),
        recovery=_recovered(recovery[0], fingerprint) if recovery else None,
    )
    if int(run.step) != contents["steps"] % 2**32:
        raise ValueError(f"it has {contents['steps']} steps, but its state has {int(run.step)}")
    return result, hooks


def into(result: Result, template: RunState) -> Result:
    """Return the result with its run in the types, and on the devices, of a run of the solver."""
    run, recovery = _retyped(result.run, template), result.recovery
    if recovery is not None and recovery.place is not None:
        place = replace(recovery.place, run=_retyped(recovery.place.run, template))
        recovery = replace(recovery, place=place)
    return replace(result, x=run.x, y=run.y, run=run, recovery=recovery)


def _retyped(run: RunState, template: RunState) -> RunState:
    likes, structure = jax.tree.flatten(_parts(template))
    leaves = [_placed(*pair) for pair in zip(jax.tree.leaves(_parts(run)), likes, strict=True)]
    return RunState(**jax.tree.unflatten(structure, leaves), fingerprint=template.fingerprint)


def _position(mark: Mark | None) -> dict[str, Any] | None:
    return None if mark is None else {"used": mark.used, "position": mark.position}


def _recovery(result: Result, loader: Mark | None) -> dict[str, Any] | None:
    """Return the return point as plain data. For a loader, keep its position there instead of its batches."""
    if (recovery := result.recovery) is None:
        return None
    place, mark, saved = recovery.place, None, None
    if place is not None and loader is not None:
        position = place.taken[0][1] if place.taken else loader.position
        mark = place.mark or Mark(None, loader.used - len(place.taken), position)
    if place is not None and (mark is None or mark.position is not None):  # else the loader cannot move there
        there = {"step": place.step, "seen": list(place.seen), "rows": place.rows, "loader": _position(mark)}
        saved = {"run": _parts(place.run)} | there
    seen = {"seen": list(recovery.seen), "count": recovery.count, "doubtful": recovery.doubtful}
    return seen | {"place": saved}


def _recovered(saved: dict[str, Any] | None, fingerprint: tuple[tuple[str, str], ...]) -> Recovery | None:
    if saved is None:
        return None
    place = None
    if (there := saved["place"]) is not None:
        run = RunState(**there["run"], fingerprint=fingerprint)
        mark = None if there["loader"] is None else Mark(None, **there["loader"])
        place = Place(there["step"], run, Seen(*there["seen"]), [], mark, there["rows"])
    return Recovery(Seen(*saved["seen"]), saved["count"], saved["doubtful"], place)


def _parts(run: RunState) -> dict[str, Any]:
    return {field.name: getattr(run, field.name) for field in fields(run) if field.name != "fingerprint"}


def _placed(leaf: Any, like: jax.Array) -> Any:
    sharding = like.sharding
    if isinstance(sharding, NamedSharding):
        return put(leaf, sharding)
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf, sharding)
