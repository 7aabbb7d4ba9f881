"""Origin of a run, as numbers in a file, to check whether another run is the same.

Values that cannot be written are listed too: a resumed run reports that it could not verify them.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevel.identity import Static, described, digest_of
from bilevel.loop.checkpoints.contents import outline
from bilevel.loop.checkpoints.trees import words_of
from bilevel.loop.columns import is_real
from bilevel.loop.data.streams import Minibatches
from bilevel.loop.plan import Plan, Progress
from bilevel.loop.single_run import Start
from bilevel.problem import Problem
from bilevel.readings import NUMBERS, Part, nodes, parts
from bilevel.solvers.rule_closures import Closures
from bilevel.types import PyTree
from bilevel.words import listed

CLOSE = 1e-3  # relative: larger than rounding on another device, smaller than the effect of another seed


def origin_of(plan: Plan, progress: Progress, start: Start) -> dict[str, Any]:
    """Return the origin of a run as plain data, of the types that JSON returns: `ORIGIN` in `contents.py`."""
    run, source, hooks = plan.storage.fetched(progress.run), plan.source, plan.hooks.hooks
    variables, data = (run.x, run.y, run.model), source.peek()
    classes = nodes(jax.tree.structure((variables, data)))
    trees = ("the classes of x, y and the data", classes or None)
    functions = [*_functions(plan.solver, ""), ("the record", plan.request.record), trees]
    reads = {name: parts(each) for name, each in functions if each is not None}
    leaves = jax.tree_util.tree_leaves_with_path(plan.solver)
    watched = any(hook.watches_probes for hook in hooks)
    deciders = [hook.decider(watched) for hook in sorted(hooks, key=lambda hook: hook.measures)]
    return {
        "numbers": {jax.tree_util.keystr(path).lstrip("."): _figure(leaf) for path, leaf in leaves},
        "reads": {name: [[p.path, p.kind, _written(p)] for p in found] for name, found in reads.items()},
        "hidden": [
            f"{part.path or 'an object'} ({_name(part.value)}) that {name} reads"
            for name, found in reads.items()
            for part in found
            if part.kind == "hidden"
        ],
        "start": figures(variables),
        "data": figures(
            data.data if isinstance(data, Minibatches) else data
        ),  # its seed is compared elsewhere
        "loader": source.stream is None,
        "seed": int(start.seed),
        "warmup": start.warmup,
        "stops": sorted(_stop(hook) for hook in deciders if hook is not None)
        + ["on_divergence=halve"] * plan.guard.halves,
        "outline": outline(start[:3]),
    }


def check_origin(path: Path, before: dict[str, Any], now: dict[str, Any]) -> str:
    """Raise if the folder holds another run. Return a note on values that could not be verified."""
    now = json.loads(json.dumps(now))
    if (found := next(_differences(before, now), None)) is not None:
        raise ValueError(
            f'{str(path)!r} holds a different run: {found}. resume="auto" continues the same run only: pass another '
            f"folder as checkpoint=, or resume={str(path)!r} to continue from there all the same"
        )
    unknown = [*now["hidden"]]
    if now["loader"]:
        first = " after the first" if before["data"] is not None else ""
        unknown.append(f"the batches of the loader{first}")
    are = "are" if unknown[1:] or now["loader"] else "is"
    note = f" Cannot verify that {listed(unknown)} {are} unchanged." if unknown else ""
    if close := [*_nearly_equal(before, now)]:
        note += (
            f" Not equal to the saved run, but close enough for rounding on another device: {listed(close)}."
        )
    return note


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name, value in now["numbers"].items():
        if (was := before["numbers"].get(name)) != value:
            yield f"{name} was {was}, here it is {value}"
    for name in {**now["reads"], **before["reads"]}:
        if found := _difference(before["reads"].get(name, []), now["reads"].get(name, []))[0]:
            yield f"{name} {found}"
    if before["start"] is not None and not _close(before["start"], now["start"]):
        yield "it started from another x0, y0 or model_state"
    if before["data"] is not None and not _close(before["data"], now["data"]):
        yield f"{'the first batch of its loader' if now['loader'] else 'its data'} had other values"
    for name in ("seed", "warmup"):
        if before[name] not in (None, now[name]):
            yield f"its {name} was {before[name]}, here it is {now[name]}"


def _nearly_equal(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Yield the arrays that differ by no more than rounding on another device."""
    for name, read in now["reads"].items():
        for path in _difference(before["reads"].get(name, []), read)[1]:
            yield f"the array {path} that {name} reads"
    if before["start"] is not None and not _equal(before["start"], now["start"]):
        yield "its start (x0, y0 or model_state)"
    if before["data"] is not None and not _equal(before["data"], now["data"]):
        yield "the first batch of its loader" if now["loader"] else "its data"


def figures(tree: PyTree) -> list[list[float]]:
    """Return [mean, root mean square, sum in this order, count of non-finite entries, checksum] per array.

    If floats were computed on another device, the first three differ by rounding and the checksum is another.
    The fourth of integers is the checksum, as they are not rounded.
    """
    leaves = [part for leaf in jax.tree.leaves(tree) for part in _real_parts(words_of(leaf))]
    return [[float(number) for number in each] for each in jax.device_get(_figures(leaves))]


def _real_parts(leaf: Any) -> list[Any]:
    if is_real(kind := jnp.result_type(leaf)):
        return [leaf]
    return [leaf.real, leaf.imag] if jnp.issubdtype(kind, jnp.complexfloating) else []


@jax.jit
def _figures(leaves: list[jax.Array]) -> list[list[jax.Array]]:
    return [_of_array(jnp.asarray(leaf)) for leaf in leaves if jnp.size(leaf)]


def _of_array(leaf: jax.Array) -> list[jax.Array]:
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    wide = leaf if floating and leaf.dtype.itemsize >= 4 else leaf.astype(jnp.float32)
    checksum = _checksum(wide if floating else leaf)
    finite = jnp.isfinite(wide)
    fine = jnp.where(finite, wide, jnp.zeros((), wide.dtype)).reshape(-1)
    largest = jnp.max(jnp.abs(fine))
    # Squares of these neither overflow nor underflow.
    unit = fine / jnp.where(largest == 0, jnp.ones((), wide.dtype), largest)
    order = jnp.cos(jnp.arange(unit.size, dtype=wide.dtype)) / math.sqrt(unit.size)
    return [
        largest * jnp.mean(unit),
        largest * jnp.sqrt(jnp.mean(unit * unit)),
        largest * jnp.sum(unit * order),
        jnp.sum(~finite) if floating else checksum,
        checksum,
    ]


def _checksum(leaf: jax.Array) -> jax.Array:
    """Return a number that changes with any single entry."""
    whole = leaf if leaf.dtype.itemsize >= 4 else leaf.astype(jnp.int32)
    bits = lax.bitcast_convert_type(whole, jnp.uint32).reshape(-1)
    odd = 2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1
    return jnp.sum((bits ^ (bits >> 15)) * (odd * odd), dtype=jnp.uint32)


def _figure(part: Any) -> Any:
    """Return a number or a word as it is, an array in figures."""
    if isinstance(part, str):
        return part
    array = np.asarray(words_of(part))
    if array.dtype.kind not in "biufV" or (array.dtype.kind == "V" and array.dtype.names):
        return hashlib.sha256(repr(array.tolist()).encode()).hexdigest()
    return array.item() if array.ndim == 0 and array.dtype.kind != "V" else figures(array)


def _functions(value: Any, name: str) -> list[tuple[str, Any]]:
    """Return the functions in a solver, its rules and its problem by name. They are no leaves."""
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
    """Return a part as plain data, the same in every process that runs the same program."""
    value = part.value
    if part.kind == "array":
        return _figure(value)
    if part.kind == "code":
        return digest_of(value.__code__)
    if part.kind == "name":
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"{getattr(value, '__module__', '')}.{name}"
    if part.kind == "hidden":
        return _name(value)
    if isinstance(value, NUMBERS[:3]) and math.isfinite(value):
        return value
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]}… {hashlib.sha256(text.encode()).hexdigest()}"


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _stop(hook: Any) -> str:
    """Return when a hook stops a run, as far as it is known."""
    return described(hook.subject) if hook.asks is None else f"{type(hook.subject).__name__}({hook.asks})"


def _difference(before: list[list[Any]], now: list[list[Any]]) -> tuple[str | None, list[str]]:
    """Return how a function differs from the earlier one, and the arrays that are close but not equal."""
    close = list[str]()
    for (path, kind, was), (path_now, kind_now, value) in zip(before, now, strict=False):
        if (path, kind) != (path_now, kind_now):
            break
        if json.dumps(was) == json.dumps(value):  # where NaN is equal to itself
            continue
        if kind == "array":
            if not (isinstance(was, list) and isinstance(value, list) and _close(was, value)):
                return f"read the array {path or 'itself'}, which had other values", []
            close += [] if _equal(was, value) else [path or "itself"]
        elif kind == "value":
            return f"read {path} = {was}, here it is {value}", []
        else:
            return f"had other code ({path})" if path else "had other code", []
    return (None, close) if len(before) == len(now) else ("had other code, or read other values", [])


def _equal(before: list[list[float]], now: list[list[float]]) -> bool:
    """Return whether the checksums are equal; the other figures may be rounded in another way."""
    return [each[-1] for each in before] == [each[-1] for each in now]


def _close(before: list[list[float]], now: list[list[float]]) -> bool:
    """Compare figures on the scale of the root mean square."""
    near = lambda was, here: (
        was[3] == here[3]
        and all(abs(a - b) <= CLOSE * max(was[1], here[1]) for a, b in zip(was[:3], here[:3], strict=True))
    )
    return len(before) == len(now) and all(map(near, before, now))
