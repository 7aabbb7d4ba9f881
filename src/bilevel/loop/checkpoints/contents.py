"""What a checkpoint consists of: the whole result so far, what the hooks remember, and what produced it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.identity import Static, captured
from bilevel.loop.checkpoints.trees import flatten, is_key, unflatten, words_of
from bilevel.loop.loaders import Mark
from bilevel.loop.result import Result
from bilevel.loop.state import RunState
from bilevel.loop.status import Code, Status
from bilevel.problem import Problem
from bilevel.solvers.base import Solver
from bilevel.types import PyTree

FORMAT = 1


@dataclass(frozen=True)
class Origin:
    """What a run was begun with, in figures: two runs that agree in them are taken for the same."""

    numbers: dict[str, Any]  # the solver's step sizes and other numbers
    start: list[list[float]]  # of x0, y0 and the model state
    data: list[list[float]]  # of data in memory
    seed: int

    @classmethod
    def of(cls, solver: Solver, start: PyTree, data: PyTree, seed: Any) -> "Origin":
        named = jax.tree_util.tree_leaves_with_path(solver)
        values = {jax.tree_util.keystr(path).lstrip("."): _figure(leaf) for path, leaf in named}
        for name, rule in _statics(solver):
            values[f"numbers in {name}"] = [_figure(number) for number in captured(rule)]
        return cls(values, figures(start), figures(data), int(seed))


def _statics(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """The functions in a solver, its rules and its problem, which are no leaves; by name."""
    if isinstance(value, Static):
        return [(name, value.value)]
    if isinstance(value, Problem):
        return [
            ("the inner objective", value.inner),
            ("the outer objective", value.outer),
            ("prox", value.prox),
        ]
    if not is_dataclass(value) or isinstance(value, type):
        return []
    within = lambda field: f"{name}.{field.name}".lstrip(".")
    return [pair for field in fields(value) for pair in _statics(getattr(value, field.name), within(field))]


def figures(tree: PyTree) -> list[list[float]]:
    """Of every floating array its mean and its root mean square, which another device rounds but does not change."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    return [[float(number) for number in pair] for pair in jax.device_get(_figures(leaves))]


@jax.jit
def _figures(leaves: list[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
    return [_mean_and_rms(leaf) for leaf in leaves if leaf.size]


def _mean_and_rms(leaf: jax.Array) -> tuple[jax.Array, jax.Array]:
    wide = leaf.astype(jnp.float32) if leaf.dtype.itemsize < 4 else leaf
    fine = jnp.where(jnp.isfinite(wide), wide, 0)
    largest = jnp.max(jnp.abs(fine))
    unit = fine / jnp.where(largest == 0, 1, largest)  # whose squares neither overflow nor vanish
    return jnp.mean(fine), largest * jnp.sqrt(jnp.mean(unit * unit))


def _figure(leaf: Any) -> Any:
    if not jnp.issubdtype(jnp.result_type(leaf), jnp.number):
        return str(leaf)
    array = np.asarray(leaf)
    return array.item() if array.ndim == 0 else figures(array.astype(float))


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


def packed(result: Result, hooks: Sequence[Any], origin: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The result and what the hooks remember, as plain data and arrays."""
    remembered = [[type(hook).__name__, hook.get_state() if remembers(hook) else None] for hook in hooks]
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
        "status": {
            "code": str(result.status.code),
            "message": result.status.message,
            "variable": result.status.variable,
            "step": result.status.step,
        },
        "order": None if loader is not None else [list(key) for key in _keys(result.feed)],
        "tree": tree,
    }
    return contents, [words_of(array) for array in arrays]


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
    return {
        "solver": run.solver,
        "model": run.model,
        "cursor": run.cursor,
        "step": run.step,
        "warm": run.warm,
        "seed": run.seed,
    }


def _placed(leaf: Any, like: jax.Array) -> Any:
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf, like.sharding)


def _keys(feed: Any) -> tuple:
    """Of the samplers that draw from data in memory."""
    return () if feed is None else feed
