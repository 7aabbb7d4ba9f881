"""What a checkpoint consists of: the whole result so far, what the hooks remember, and what produced it."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from bilevel.loop.checkpoints.trees import flatten, is_key, unflatten, words_of
from bilevel.loop.feed import Mark
from bilevel.loop.places import put
from bilevel.loop.result import Result
from bilevel.loop.state import RunState
from bilevel.loop.status import Code, Status
from bilevel.types import PyTree

FORMAT = 1


def made_by() -> dict[str, str]:
    """The versions that a run's bits may depend on."""
    import bilevel

    return {"bilevel": bilevel.__version__, "jax": jax.__version__, "device": jax.devices()[0].device_kind}


def outline(tree: PyTree) -> dict[str, Any]:
    """A tree without its numbers, from which one of the same shape can be made again."""
    description, arrays = flatten(tree)
    return {"tree": description, "shapes": [[list(jnp.shape(a)), str(jnp.result_type(a))] for a in arrays]}


def outlined(outline: dict[str, Any]) -> PyTree:
    """Zeros in the shape of an outline."""
    return unflatten(outline["tree"], [jnp.zeros(shape, dtype) for shape, dtype in outline["shapes"]])


def packed(
    result: Result, hooks: Sequence[Any], origin: dict[str, Any]
) -> tuple[dict[str, Any], list[Any], str]:
    """The result and what the hooks remember, as plain data and arrays; and a hook whose memory cannot be saved."""
    remembered, left_out = [], ""
    for hook in hooks:
        try:
            state = hook.get_state() if remembers(hook) else None
            flatten(state)
        except Exception as error:
            state, left_out = None, f"what {type(hook).__name__} remembers cannot be saved ({error})"
        remembered.append([type(hook).__name__, state])
    loader = result.feed if isinstance(result.feed, Mark) else None
    position = None if loader is None else {"used": loader.used, "position": loader.position}
    # The run comes first, so that its arrays have the first numbers.
    tree, arrays = flatten([_parts(result.run), result.trace, result.probes, remembered, position])
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
        "order": None if loader is not None else [list(key) for key in _keys(result.feed)],
        "tree": tree,
    }
    return contents, [words_of(array) for array in arrays], left_out


def unpacked(contents: dict[str, Any], arrays: list[Any]) -> tuple[Result, list[Any]]:
    """The result, in plain containers, and what the hooks remembered."""
    parts, trace, probes, hooks, loader = unflatten(contents["tree"], arrays)
    run = RunState(**parts, fingerprint=tuple((what, words) for what, words in contents["fingerprint"]))
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
    )
    if int(run.step) != contents["steps"] % 2**32:
        raise ValueError(f"it says {contents['steps']} steps, and its state {int(run.step)}")
    return result, hooks


def into(result: Result, template: RunState) -> Result:
    """The result with its run in the types that the solver makes, and where it keeps them."""
    likes, structure = jax.tree.flatten(_parts(template))
    leaves = [_placed(*pair) for pair in zip(jax.tree.leaves(_parts(result.run)), likes, strict=True)]
    run = RunState(**jax.tree.unflatten(structure, leaves), fingerprint=template.fingerprint)
    return replace(result, x=run.x, y=run.y, run=run)


def places(template: RunState) -> list[Any]:
    """Where the arrays of a run belong, in the order in which a checkpoint has them; keys are made from their words."""
    return [None if is_key(leaf) else leaf.sharding for leaf in jax.tree.leaves(_parts(template))]


def shapes(template: RunState) -> list[list[Any]]:
    """Of the arrays of a run, in the same order."""
    leaves = map(words_of, jax.tree.leaves(_parts(template)))
    return [[list(leaf.shape), str(leaf.dtype)] for leaf in leaves]


def remembers(hook: Any) -> bool:
    return callable(getattr(hook, "get_state", None)) and callable(getattr(hook, "set_state", None))


def _parts(run: RunState) -> dict[str, Any]:
    """All of it that is arrays."""
    return {field.name: getattr(run, field.name) for field in fields(run) if field.name != "fingerprint"}


def _placed(leaf: Any, like: jax.Array) -> Any:
    sharding = like.sharding
    if isinstance(sharding, NamedSharding):
        return put(leaf, sharding)
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf, sharding)


def _keys(feed: Any) -> tuple[Any, ...]:
    """Of the samplers that draw from data in memory."""
    return () if feed is None else feed
