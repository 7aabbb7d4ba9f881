"""Bad input is refused before any compute, with a sentence that names the value and the fix."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.problem import Batch, Objective, Problem

PyTree = Any


def prepare(problem: Problem, x0: PyTree, y0: PyTree, batch: Batch | None) -> tuple[PyTree, PyTree]:
    """x0 and y0 as trees of JAX arrays, once they, the data and the objectives are known to fit together."""
    x, y = variables(x0, y0)
    check_batch(problem, batch)
    shapes = signature((x, y, batch))
    if shapes not in problem.checked:
        for objective in (problem.f, problem.g):
            _check_scalar(objective, x, y, batch)
        _check_gradient(problem, x, y, batch)
        problem.checked.add(shapes)
    return x, y


def signature(tree: PyTree) -> tuple:
    """The tree's structure, shapes and dtypes: what the checks and the compiled program depend on."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def check_batch(problem: Problem, batch: Any) -> None:
    """Each level must get data if and only if its objective takes any."""
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


def check_count(value: Any, name: str, least: int = 1) -> int:
    """A whole number that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(
            f"{name} must be a whole number of at least {least}, not {value!r}: pass e.g. {name}={max(least, 100)}"
        )
    return int(value)


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
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int | complex):
        raise TypeError(
            f"{where} is a {type(leaf).__name__}, not a floating array: keep what is not trained out of the "
            "tree (for an Equinox module, equinox.partition(model, equinox.is_inexact_array))"
        )
    array = jnp.asarray(leaf)
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
    with jax.ensure_compile_time_eval():  # a concrete array has a value even while something else is traced
        counts = jax.device_get(_non_finite([leaf for _, leaf in named]))
    for ((first, *rest), leaf), bad in zip(named, counts, strict=True):
        if bad:
            raise ValueError(
                f"{first.key}{jax.tree_util.keystr(tuple(rest))} contains NaN or infinity "
                f"({bad} of {leaf.size} entries): start from finite values"
            )


@jax.jit
def _non_finite(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.sum(~jnp.isfinite(array)) for array in arrays]


def _check_scalar(objective: Objective, x: PyTree, y: PyTree, batch: Batch | None) -> None:
    value = jax.eval_shape(objective, x, y, batch)
    if not isinstance(value, jax.ShapeDtypeStruct) or value.shape != ():
        shown = jax.tree.map(lambda leaf: leaf.shape, value)
        raise ValueError(
            f"the {objective.level} objective must return a scalar, but returns {shown}: "
            "reduce it, e.g. with jnp.mean(...), and return nothing else"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"the {objective.level} objective must return a floating scalar, but returns {value.dtype}"
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
