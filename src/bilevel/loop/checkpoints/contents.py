"""Contents of a checkpoint: the result so far, the states of the hooks, and the origin of the run."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from bilevel.loop.checkpoints.trees import flatten, is_key, unflatten, words_of
from bilevel.loop.data.loader_buffer import Mark
from bilevel.loop.devices.state_sharding import put
from bilevel.loop.recovery.place import Place, Recovery, Seen
from bilevel.loop.result import Result
from bilevel.loop.state import RunState
from bilevel.loop.status import Code, Status
from bilevel.types import PyTree

FORMAT = 3


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
        "order": _order(result.feed),
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


def places(template: RunState) -> list[Any]:
    """Return the shardings of the arrays of a run, in the order of a checkpoint; `None` for random keys."""
    return [None if is_key(leaf) else leaf.sharding for leaf in jax.tree.leaves(_parts(template))]


def shapes(template: RunState) -> list[list[Any]]:
    """Return the shapes and dtypes of the arrays of a run, in the same order."""
    leaves = map(words_of, jax.tree.leaves(_parts(template)))
    return [[list(leaf.shape), str(leaf.dtype)] for leaf in leaves]


def _order(feed: Any) -> list[list[Any]] | None:
    """Return the keys of the samplers of data in memory; `None` for a loader."""
    return None if isinstance(feed, Mark) else [list(key) for key in feed or ()]


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
    return {
        "seen": list(recovery.seen),
        "count": recovery.count,
        "doubtful": recovery.doubtful,
        "place": saved,
    }


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
