"""Bad input is refused before any compute, with a sentence that names the value and the fix."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.arrays import as_array
from bilevel.batch import Batch, Draws, first
from bilevel.forks import check_fork
from bilevel.problem import Evaluated, Objective, Problem
from bilevel.types import PyTree

FEW = 10_000  # numbers that are looked at on the host


def prepare(problem: Problem, x0: PyTree, y0: PyTree, batch: Batch | Draws | None) -> tuple[PyTree, PyTree]:
    """x0 and y0 as trees of JAX arrays, once they, the data and the objectives are known to fit together."""
    check_fork()
    x, y = variables(x0, y0)
    batch = first(batch)
    check_batch(problem, batch)
    checked, shapes = problem.memory.setdefault("checked", set()), signature((x, y, batch))
    if shapes not in checked:
        for objective in (problem.g, problem.f):
            _check_extras(objective, batch)
            _check_value(objective, x, y, batch)
        _check_gradient(problem, x, y, batch)
        _check_prox(problem, x, y)
        checked.add(shapes)
    return x, y


def _check_prox(problem: Problem, x: PyTree, y: PyTree) -> None:
    if problem.prox is None:
        return
    try:
        out = jax.eval_shape(lambda x, y: problem.prox(x, y, 0.5), x, y)  # pyright: ignore[reportOptionalCall]
    except TypeError as error:
        raise TypeError(f"prox must take (x, z, step) and return the new y: {error}") from error
    if signature(out) != signature(y):
        described = lambda tree: jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", tree)
        raise TypeError(
            f"prox returned {described(out)}, not a tree like y, {described(y)}: return the new y, in the dtype "
            "of z"
        )


def prepare_inner(problem: Problem, x: PyTree, batch: Batch) -> PyTree:
    """x as a tree of JAX arrays, once it, as both variables, and the data are known to fit the inner objective."""
    x = _arrays(x, "x")
    _check_finite({"x": x})
    _check_extras(problem.g, batch)
    _check_value(problem.g, x, x, batch)
    return x


def signature(tree: PyTree) -> tuple:
    """The tree's structure, shapes and dtypes: what the checks and the compiled program depend on."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def check_batch(problem: Problem, batch: Any) -> None:
    """Each level must get data if and only if its objective takes any."""
    batch = first(batch) if isinstance(batch, Draws) else batch
    if batch is not None and not isinstance(batch, Batch):
        raise TypeError(
            f"data must be a bl.Batch, not {type(batch).__name__}: pass bl.Batch(inner=..., outer=...)"
        )
    for objective in (problem.f, problem.g):
        level = objective.level
        given = batch is not None and getattr(batch, level) is not None
        if objective.batch == "required" and not given:
            raise ValueError(
                f"the {level} objective takes (x, y, batch), but no {level} data were given: "
                f"pass data=bl.Batch({level}=...)"
            )
        if objective.batch == "never" and given:
            raise ValueError(
                f"the {level} objective takes only (x, y), but {level} data were given: "
                f"let it take (x, y, batch), or leave {level}= out of bl.Batch"
            )


def check_positive(value: Any, name: str, alternative: str = "") -> None:
    """Refuses what is not a positive finite number; a traced value is let through, it has no value yet."""
    if isinstance(value, Tracer):
        return
    number = isinstance(value, int | float | np.number) or (
        isinstance(value, np.ndarray | jax.Array) and value.ndim == 0
    )
    if not number or isinstance(value, bool) or not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"the {name} must be a positive number, not {value!r}: pass e.g. 1e-2 {alternative}".rstrip()
        )


def check_not_negative(value: Any, name: str) -> None:
    """Zero, or what `check_positive` lets through."""
    if isinstance(value, Tracer) or (type(value) in (int, float) and value == 0):
        return
    check_positive(value, name, "or 0 for none")


def check_schedule(schedule: Any, k: Any, check: Callable[[Any], Any]) -> Any:
    """The function of a step number, once its value at step k has passed `check`."""
    with jax.ensure_compile_time_eval():
        value = schedule(k)
    known = isinstance(value, np.ndarray | np.generic | jax.Array) and not isinstance(value, Tracer)
    check(value.item() if known and value.ndim == 0 else value)
    return schedule


def check_count(value: Any, name: str, least: int = 1) -> int:
    """A whole number that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(
            f"{name} must be a whole number of at least {least}, not {value!r}: pass e.g. {name}={max(least, 100)}"
        )
    return int(value)


def check_seed(seed: Any) -> np.uint32:
    """A whole number that fits 32 bits."""
    if check_count(seed, "seed", least=0) >= 2**32:
        raise ValueError(f"seed must be below 2**32, not {seed}: pass a smaller one")
    return np.uint32(seed)


def variables(x0: PyTree, y0: PyTree) -> tuple[PyTree, PyTree]:
    """x0 and y0 as trees of floating JAX arrays, finite as far as they have values."""
    x, y = _arrays(x0, "x0"), _arrays(y0, "y0")
    _check_finite({"x0": x, "y0": y})
    return x, y


def _arrays(tree: PyTree, name: str) -> PyTree:
    if not jax.tree.leaves(tree):
        raise ValueError(f"{name} has no arrays in it (got {tree!r}): pass an array or a pytree of arrays")
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _variable(leaf, name + jax.tree_util.keystr(path)), tree
    )


def _variable(leaf: Any, where: str) -> jax.Array:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int | complex) and not hasattr(
        leaf, "detach"
    ):
        raise TypeError(
            f"{where} is a {type(leaf).__name__}, not a floating array: keep what is not trained out of the "
            "tree (for an Equinox module, equinox.partition(model, equinox.is_inexact_array))"
        )
    array = jnp.asarray(leaf) if isinstance(leaf, float | int | complex) else as_array(leaf, where)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"{where} has dtype {array.dtype}, but only floating arrays have gradients: "
            f"convert it, e.g. jnp.asarray({where}, dtype=float), or keep it out of the tree"
        )
    # A Python float's weak type would change after one step.
    return jnp.asarray(array, dtype=array.dtype) if array.weak_type else array


def _check_finite(trees: dict[str, PyTree]) -> None:
    """Concrete arrays must be finite; traced ones have no values yet."""
    named = [
        (path, leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(trees)
        if not isinstance(leaf, Tracer)
    ]
    here = jax.default_backend() == "cpu"
    if (
        here and sum(leaf.size for _, leaf in named) <= FEW
    ):  # a look costs less than a call of a compiled program
        counts = [int(np.sum(~np.isfinite(np.asarray(leaf)))) for _, leaf in named]
    else:
        with (
            jax.ensure_compile_time_eval()
        ):  # a concrete array has a value even while something else is traced
            counts = jax.device_get(_non_finite([leaf for _, leaf in named]))
    for ((root, *rest), leaf), bad in zip(named, counts, strict=True):
        if bad:
            raise ValueError(
                f"{root.key}{jax.tree_util.keystr(tuple(rest))} contains NaN or infinity "
                f"({bad} of {leaf.size} entries): start from finite values"
            )


@jax.jit
def _non_finite(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.sum(~jnp.isfinite(array)) for array in arrays]


def _check_extras(objective: Objective, batch: Batch | None) -> None:
    """A keyword without a default must have something to receive."""
    batch = Batch() if batch is None else batch
    given = {"key": batch.key, "rows": getattr(batch.rows, objective.level), "state": batch.state}
    how = {
        "key": "bl.run and bl.start supply it; by hand, pass bl.Batch(..., key=jax.random.key(0))",
        "rows": "bl.run, bl.epochs and bl.iid supply them for arrays with one row per example; from a loader, or by "
        "hand, pass bl.Batch(..., rows=bl.Levels(inner=..., outer=...))",
        "state": "pass model_state=... to bl.run or bl.start, or by hand bl.Batch(..., state=...)",
    }
    for name in sorted(objective.needs):
        if given[name] is None:
            raise ValueError(
                f"the {objective.level} objective asks for `{name}`, but there is none: {how[name]}"
            )


def _check_value(objective: Objective, x: PyTree, y: PyTree, batch: Batch | None) -> None:
    value, metrics, state = jax.eval_shape(lambda *at: _of_arrays(objective, *at), x, y, batch)
    if not isinstance(value, jax.ShapeDtypeStruct) or value.shape != ():
        shown = jax.tree.map(lambda leaf: leaf.shape, value)
        raise ValueError(
            f"the {objective.level} objective must return a scalar, but returns {shown}: "
            "reduce it, e.g. with jnp.mean(...)"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"the {objective.level} objective must return a floating scalar, but returns {value.dtype}"
        )
    for name, metric in metrics.items():
        if not isinstance(metric, jax.ShapeDtypeStruct) or metric.shape != ():
            shown = jax.tree.map(lambda leaf: leaf.shape, metric)
            raise ValueError(
                f"the {objective.level} objective's metrics must be scalars by name, but {name!r} is {shown}: "
                "reduce it, e.g. with jnp.mean(...)"
            )
    if state is not None:
        _check_same(None if batch is None else batch.state, state)


def _of_arrays(objective: Objective, x: PyTree, y: PyTree, batch: Batch | None) -> Evaluated:
    """The objective there; what JAX has no type for is refused in our words."""
    out = objective.evaluate(x, y, batch)
    parts = {"a loss": out.loss} | {f"the metric {name!r}": value for name, value in out.metrics.items()}
    for what, part in parts.items():
        for leaf in jax.tree.leaves(part):
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
                raise TypeError(
                    f"the {objective.level} objective returned {what} that is a {type(leaf).__name__}: "
                    "return a scalar array"
                )
    if unnamed := [name for name in out.metrics if not isinstance(name, str)]:
        raise TypeError(
            f"the {objective.level} objective's metrics must be scalars by name, but {unnamed[0]!r} is a "
            f"{type(unnamed[0]).__name__}: name it by a string"
        )
    return out


def _check_same(before: PyTree, after: PyTree) -> None:
    """The model's state must not change its shape from step to step."""
    if before is None:
        raise ValueError(
            "the inner objective was given no state and returned one: pass model_state=... to bl.run or bl.start, or "
            "return None in its place"
        )
    if signature(before) == signature(after):
        return
    shown = [
        jax.tree.map(lambda a: f"{jnp.result_type(a)}{list(jnp.shape(a))}", tree) for tree in (before, after)
    ]
    raise ValueError(
        f"the inner objective was given a state of {shown[0]} and returned one of {shown[1]}: it must return the same "
        "tree, shapes and dtypes"
    )


def _check_gradient(problem: Problem, x: PyTree, y: PyTree, batch: Batch | None) -> None:
    """Automatic differentiation always passes; a hand-written oracle or custom derivative may not."""
    gradient = jax.eval_shape(problem.oracles.inner_gradient, x, y, batch)
    structures = jax.tree.structure(gradient), jax.tree.structure(y)
    if structures[0] != structures[1]:
        raise ValueError(
            f"∇_y g has the tree {structures[0]}, but y0 has {structures[1]}: the inner gradient must be shaped like y"
        )
    named, _ = jax.tree_util.tree_flatten_with_path(y)
    for (path, leaf), grad in zip(named, jax.tree.leaves(gradient), strict=True):
        if (leaf.shape, leaf.dtype) != (grad.shape, grad.dtype):
            raise ValueError(
                f"∇_y g at y0{jax.tree_util.keystr(path)} is {grad.dtype}{list(grad.shape)}, but y0 there is "
                f"{leaf.dtype}{list(leaf.shape)}: the inner gradient must be shaped like y"
            )
