"""What a run began with, in figures that a file can hold, to tell whether another run is the same.

What cannot be written down is listed too: a run that resumes reports that it could not be verified.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.identity import Static, described, digest_of
from bilevel.problem import Problem
from bilevel.readings import NUMBERS, Part, nodes, parts
from bilevel.solvers.base import Solver
from bilevel.solvers.rule_closures import Closures
from bilevel.types import PyTree
from bilevel.words import listed

CLOSE = 1e-3  # relative: more than another device rounds, less than another seed would change


@dataclass(frozen=True)
class Origin:
    """Plain data, as JSON gives them back."""

    numbers: dict[str, Any]  # the solver's step sizes and other numbers
    reads: dict[str, list[list[Any]]]  # what each function reads, as (path, kind, figure)
    hidden: list[str]  # what it reads that has no figure
    start: list[list[float]]  # figures of x0, y0 and the model state
    data: list[list[float]]  # of data in memory, or of a loader's first batch
    loader: bool
    seed: int
    warmup: int
    stops: list[str]  # what may end the run, which a run that goes on may change

    @classmethod
    def of(
        cls,
        solver: Solver,
        start: PyTree,
        data: PyTree,
        loader: bool,
        record: Any,
        seed: Any,
        warmup: int,
        hooks: Sequence[Any],
        halve: bool,
    ) -> "Origin":
        named = jax.tree_util.tree_leaves_with_path(solver)
        classes = nodes(jax.tree.structure((start, data)))
        trees = "the classes of x, y and the data"
        functions = [*_functions(solver, ""), ("the record", record), (trees, classes or None)]
        reads = {name: parts(each) for name, each in functions if each is not None}
        return cls(
            {jax.tree_util.keystr(path).lstrip("."): _figure(leaf) for path, leaf in named},
            {
                name: [[part.path, part.kind, _written(part)] for part in found]
                for name, found in reads.items()
            },
            [
                _unverifiable(name, part)
                for name, found in reads.items()
                for part in found
                if part.kind == "hidden"
            ],
            figures(start),
            figures(data),
            loader,
            int(seed),
            warmup,
            sorted(map(_hook, hooks)) + (["on_divergence=halve"] if halve else []),
        )


def check_origin(path: Path, before: dict[str, Any], now: dict[str, Any]) -> str:
    """Raise if the run in the folder is another one; return what could not be verified, as a note for the status."""
    now = json.loads(json.dumps(now))
    differ = [
        f"{name} was {before['numbers'].get(name)}, here it is {value}"
        for name, value in now["numbers"].items()
        if before["numbers"].get(name) != value
    ]
    for name in {**now["reads"], **before["reads"]}:
        found = _difference(before["reads"].get(name, []), now["reads"].get(name, []))
        differ += [f"{name} {found}"] if found else []
    if before["start"] is not None and not _close(before["start"], now["start"]):
        differ.append("it began from another x0, y0 or model_state")
    known = before["data"] is not None
    if known and not _close(before["data"], now["data"]):
        what = "the first batch of its loader" if now["loader"] else "its data"
        differ.append(f"{what} had other values")
    for name in ("seed", "warmup"):
        if before[name] is not None and before[name] != now[name]:
            differ.append(f"its {name} was {before[name]}, here it is {now[name]}")
    if differ:
        raise ValueError(
            f'the run in {str(path)!r} is another one: {differ[0]}. resume="auto" continues the same run only: pass '
            f"another folder as checkpoint=, or resume={str(path)!r} to continue from there all the same"
        )
    unknown = [*now["hidden"]]
    if now["loader"]:
        unknown.append("the batches of the loader after the first" if known else "the batches of the loader")
    return (
        f" Cannot verify that {listed(unknown)} {'are' if unknown[1:] or now['loader'] else 'is'} unchanged."
        if unknown
        else ""
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
        return hashlib.sha256(repr(array.tolist()).encode()).hexdigest()
    return array.item() if array.ndim == 0 and array.dtype.kind != "V" else figures(array)


def _functions(value: Any, name: str) -> list[tuple[str, Any]]:
    """The functions in a solver, its rules and its problem, which are no leaves; by name."""
    if isinstance(value, Static | Closures):
        return [(name, value.value)]
    if isinstance(value, Problem):
        found = {"the inner objective": value.inner, "the outer objective": value.outer, "prox": value.prox}
        return [*found.items(), ("the problem", type(value))]
    if not is_dataclass(value) or isinstance(value, type):
        return []
    within = lambda field: f"{name}.{field.name}".lstrip(".")
    parts_of = [
        pair for field in fields(value) for pair in _functions(getattr(value, field.name), within(field))
    ]
    return [*parts_of, (name or "the solver", type(value))]


def _written(part: Part) -> Any:
    """A part in plain data, the same in every process that runs the same program."""
    value = part.value
    if part.kind == "array":
        return _figure(value)
    if part.kind == "code":
        return digest_of(value.__code__)
    if part.kind == "name":
        return (
            f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
        )
    if part.kind == "hidden":
        return _name(value)
    return value if isinstance(value, NUMBERS[:3]) and math.isfinite(value) else _short(repr(value))


def _unverifiable(name: str, part: Part) -> str:
    return f"{part.path or 'an object'} ({_name(part.value)}) that {name} reads"


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:100]}… {hashlib.sha256(text.encode()).hexdigest()}"


def _hook(hook: Any) -> str:
    """What a hook would stop a run for, as far as can be told."""
    return described(hook.subject) if hook.asks is None else f"{type(hook.subject).__name__}({hook.asks})"


def _difference(before: list[list[Any]], now: list[list[Any]]) -> str | None:
    """The first part that differs, in words."""
    for then, here in zip(before, now, strict=False):
        (path, kind, was), (path_now, kind_now, value) = then, here
        if (path, kind) != (path_now, kind_now):
            break
        if kind == "array":
            if (
                not (isinstance(was, list) and isinstance(value, list) and _close(was, value))
                and was != value
            ):
                return f"read the array {path or 'itself'}, which had other values"
        elif json.dumps(was) != json.dumps(value):  # NaN is equal to itself
            if kind == "value":
                return f"read {path} = {was}, here it is {value}"
            return f"had other code ({path})" if path else "had other code"
    return None if len(before) == len(now) else "had other code, or read other things"


def _close(before: list[list[float]], now: list[list[float]]) -> bool:
    """Figures, compared on the scale of the root mean square."""
    if len(before) != len(now):
        return False
    near = lambda was, here: all(
        abs(a - b) <= CLOSE * max(was[1], here[1]) for a, b in zip(was[:3], here[:3], strict=True)
    )
    return all(was[3] == here[3] and near(was, here) for was, here in zip(before, now, strict=True))
