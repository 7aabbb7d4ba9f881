"""What a run was begun with, in figures that a file can hold: two runs that agree in them are taken for the same."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.identity import Static, captured, described
from bilevel.problem import Problem
from bilevel.solvers.base import Solver
from bilevel.types import PyTree

CLOSE = 1e-3  # relative: more than another device rounds, less than another seed would change


@dataclass(frozen=True)
class Origin:
    """Plain data, as JSON gives them back."""

    numbers: dict[str, Any]  # the solver's step sizes and other numbers
    functions: dict[str, list[Any]]  # what the objectives and rules are made of
    start: list[list[float]]  # figures of x0, y0 and the model state
    data: list[list[float]]  # of data in memory
    seed: int
    warmup: int
    stops: list[str]  # what may end the run, which a run that goes on may change

    @classmethod
    def of(
        cls,
        solver: Solver,
        start: PyTree,
        data: PyTree,
        seed: Any,
        warmup: int,
        hooks: Sequence[Any],
        halve: bool,
    ) -> "Origin":
        named = jax.tree_util.tree_leaves_with_path(solver)
        return cls(
            {jax.tree_util.keystr(path).lstrip("."): _figure(leaf) for path, leaf in named},
            {name: [_figure(part) for part in captured(each)] for name, each in _functions(solver)},
            figures(start),
            figures(data),
            int(seed),
            warmup,
            sorted(map(_hook, hooks)) + (["on_divergence=halve"] if halve else []),
        )


def check_origin(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuses to go on by itself with another solver's numbers, other functions, another start or other data."""
    now = json.loads(json.dumps(now))
    differ = [
        f"{name} was {before['numbers'].get(name)}, here it is {value}"
        for name, value in now["numbers"].items()
        if before["numbers"].get(name) != value
    ]
    differ += [
        f"{name} {_change(before['functions'].get(name, []), parts)}"
        for name, parts in now["functions"].items()
        if not _same(before["functions"].get(name, []), parts)
    ]
    if before["start"] is not None and not _close(before["start"], now["start"]):
        differ.append("it began from another x0, y0 or model_state")
    if not _close(before["data"], now["data"]):
        differ.append("its data had other values")
    for name in ("seed", "warmup"):
        if before[name] is not None and before[name] != now[name]:
            differ.append(f"its {name} was {before[name]}, here it is {now[name]}")
    if differ:
        raise ValueError(
            f'the run in {str(path)!r} is another one: {differ[0]}. resume="auto" only goes on with the same run: pass '
            f"another folder as checkpoint=, or resume={str(path)!r} to go on from there all the same"
        )


def figures(tree: PyTree) -> list[list[float]]:
    """Of every array: mean, root mean square, a sum that depends on the order, and how many entries are not finite.

    Another device rounds the first three, but does not change them.
    """
    kinds = jnp.floating, jnp.integer, jnp.bool_
    leaves = [
        leaf for leaf in jax.tree.leaves(tree) if any(jnp.issubdtype(jnp.result_type(leaf), k) for k in kinds)
    ]
    return [[float(number) for number in each] for each in jax.device_get(_figures(leaves))]


@jax.jit
def _figures(leaves: list[jax.Array]) -> list[list[jax.Array]]:
    return [_of_array(jnp.asarray(leaf)) for leaf in leaves if jnp.size(leaf)]


def _of_array(leaf: jax.Array) -> list[jax.Array]:
    real = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize >= 4
    wide = leaf if real else leaf.astype(jnp.float32)
    finite = jnp.isfinite(wide)
    fine = jnp.where(finite, wide, jnp.zeros((), wide.dtype)).reshape(-1)
    largest = jnp.max(jnp.abs(fine))
    unit = fine / jnp.where(
        largest == 0, jnp.ones((), wide.dtype), largest
    )  # its squares neither overflow nor vanish
    order = jnp.cos(jnp.arange(unit.size, dtype=wide.dtype)) / math.sqrt(unit.size)
    return [
        largest * jnp.mean(unit),
        largest * jnp.sqrt(jnp.mean(unit * unit)),
        largest * jnp.sum(unit * order),
        jnp.sum(~finite),
    ]


def _figure(part: Any) -> Any:
    """A number or a word as it is, an array in figures."""
    if isinstance(part, str):
        return part
    if jnp.issubdtype(getattr(part, "dtype", jnp.float32), jax.dtypes.prng_key):
        part = jax.random.key_data(part)
    array = np.asarray(part)
    if array.dtype.kind not in "biufV" or (array.dtype.kind == "V" and array.dtype.names):
        return str(part)
    return array.item() if array.ndim == 0 and array.dtype.kind != "V" else figures(array)


def _functions(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """The functions in a solver, its rules and its problem, which are no leaves; by name."""
    if isinstance(value, Static):
        return [(name, value.value)]
    if isinstance(value, Problem):
        parts = {"the inner objective": value.inner, "the outer objective": value.outer, "prox": value.prox}
        return list(parts.items())
    if not is_dataclass(value) or isinstance(value, type):
        return []
    within = lambda field: f"{name}.{field.name}".lstrip(".")
    return [pair for field in fields(value) for pair in _functions(getattr(value, field.name), within(field))]


def _hook(hook: Any) -> str:
    """What a hook would stop a run for, as far as can be told."""
    asks = getattr(hook, "asks", None)
    return described(hook) if asks is None else f"{type(hook).__name__}({asks})"


def _same(before: list[Any], now: list[Any]) -> bool:
    if len(before) != len(now):
        return False
    pairs = zip(before, now, strict=True)
    return all(_close(a, b) if isinstance(a, list) and isinstance(b, list) else a == b for a, b in pairs)


def _change(before: list[Any], now: list[Any]) -> str:
    """The first part that differs, in words."""
    pairs = zip(before, now, strict=False)
    a, b = next(((a, b) for a, b in pairs if not _same([a], [b])), (None, None))
    if isinstance(a, list) or isinstance(b, list):
        return "depended on an array of other values"
    if isinstance(a, float) and isinstance(b, float):
        return f"depended on {a:g}, here it is {b:g}"
    return "was other code, or depended on other things"


def _close(before: list[list[float]], now: list[list[float]]) -> bool:
    """Figures, compared on the scale of the root mean square."""
    if len(before) != len(now):
        return False
    near = lambda was, here: all(
        abs(a - b) <= CLOSE * max(was[1], here[1]) for a, b in zip(was[:3], here[:3], strict=True)
    )
    return all(was[3] == here[3] and near(was, here) for was, here in zip(before, now, strict=True))
