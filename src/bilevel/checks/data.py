"""Checks of arrays: the variables, data with one row per example, labels of classes, seeds and dtypes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.arrays import as_array, at_hand, check_no_torch_module, is_fit, leaves_of
from bilevel.checks.values import check_count
from bilevel.types import PyTree
from bilevel.words import described, shown


def check_known(**trees: PyTree) -> None:
    """Raise if an array is traced, for functions that need values."""
    for name, tree in trees.items():
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
            raise TypeError(
                f"{name} is traced, but its values are needed: call this outside jit, vmap and grad"
            )


def signature(tree: PyTree) -> tuple[Any, ...]:
    """Return the structure, shapes and dtypes of a tree, on which checks and compiled programs depend."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def variables(x0: PyTree, y0: PyTree, names: tuple[str, str] = ("x0", "y0")) -> tuple[PyTree, PyTree]:
    """Return x0 and y0 as trees of floating JAX arrays; raise if a value is not finite."""
    x, y = floating_arrays(x0, names[0]), floating_arrays(y0, names[1])
    check_finite_arrays(dict(zip(names, (x, y), strict=True)))
    return x, _varying_with(x, y)


def _varying_with(x: PyTree, y: PyTree) -> PyTree:
    """Return y marked as varying over the devices of a `jax.shard_map`, if x varies there.

    Every device then has a separate inner problem. Otherwise JAX sums ∇_y g over the devices, as if they shared one y.
    """
    traced = [leaf for leaf in jax.tree.leaves(x) if isinstance(leaf, Tracer)]
    if not traced:
        return y
    one = jnp.float32(1) + sum(jnp.sum(jnp.zeros_like(leaf, jnp.float32)) for leaf in traced)
    return jax.tree.map(lambda leaf: leaf * one.astype(leaf.dtype), y)


def floating_arrays(tree: PyTree, name: str) -> PyTree:
    leaves = leaves_of(tree, name)
    if not leaves:
        raise ValueError(
            f"{name} has no arrays in it (got {shown(tree)}): pass an array or a pytree of arrays"
        )
    if not all(isinstance(leaf, jax.Array) and is_fit(leaf) and _is_floating(leaf) for leaf in leaves):
        convert = lambda path, leaf: _variable(leaf, name + jax.tree_util.keystr(path))
        tree = jax.tree_util.tree_map_with_path(convert, tree)
        leaves = jax.tree.leaves(tree)
    if not any(leaf.size for leaf in leaves):
        raise ValueError(f"{name} has no entries, only {described(tree)}: there is nothing to optimize in it")
    return tree


def _is_floating(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating)


def _variable(leaf: Any, where: str) -> jax.Array:
    check_no_torch_module(leaf, where)
    numeric = isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int | complex)
    if not numeric and not hasattr(leaf, "detach"):
        raise TypeError(
            f"{where} is a {type(leaf).__name__}, not a floating array: keep what is not trained out of the "
            "tree (for an Equinox module, equinox.partition(model, equinox.is_inexact_array))"
        )
    array = jnp.asarray(leaf) if isinstance(leaf, float | complex) else as_array(leaf, where)
    if not _is_floating(array):
        raise TypeError(
            f"{where} has dtype {array.dtype}, but only floating arrays have gradients: "
            f"convert it, e.g. jnp.asarray({where}, dtype=float), or keep it out of the tree"
        )
    # A Python float's weak type would change after one step.
    return jnp.asarray(array, dtype=array.dtype) if array.weak_type else array


def check_finite_arrays(trees: dict[str, PyTree]) -> None:
    """Raise if a concrete array is not finite; traced ones have no values yet."""
    leaves = [leaf for leaf in jax.tree.leaves(trees) if not isinstance(leaf, Tracer)]
    if at_hand(leaves) and all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves):
        return
    with jax.ensure_compile_time_eval():  # a concrete array has a value even while something else is traced
        counts = iter(jax.device_get(_non_finite(leaves)))
    for (root, *rest), leaf in jax.tree_util.tree_leaves_with_path(trees):
        if not isinstance(leaf, Tracer) and (bad := next(counts)):
            raise ValueError(
                f"{root.key}{jax.tree_util.keystr(tuple(rest))} contains NaN or infinity "
                f"({bad} of {leaf.size} entries): start from finite values"
            )


@jax.jit
def _non_finite(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.sum(~jnp.isfinite(array)) for array in arrays]


def check_array(value: Any, name: str, rank: int | None = None) -> Any:
    """Return an array of numbers of rank `rank`, or of rank 1 or more without it; raise for anything else."""
    arrays = np.ndarray | jax.Array | jax.ShapeDtypeStruct  # shapes are enough
    known = isinstance(value, arrays) and not np.ma.isMaskedArray(value)
    if known and isinstance(value, jax.Array) and not isinstance(value, Tracer):
        known = not value.is_deleted()
    numbers = known and any(jnp.issubdtype(value.dtype, kind) for kind in (np.number, np.bool_))
    if not numbers or (value.ndim < 1 if rank is None else value.ndim != rank):
        what = "with one row per example" if rank is None else f"of rank {rank}"
        found = f"{value.dtype}{list(value.shape)}" if known else shown(value)
        raise TypeError(
            f"{name} must be an array of numbers {what}, not {found}: convert it, e.g. by np.asarray(..., dtype=float)"
        )
    return value


def check_matrix(value: Any, name: str) -> Any:
    """Return a finite matrix with at least one row; raise for anything else. A traced one has no values yet."""
    check_array(value, name)
    if isinstance(value, Tracer) and value.ndim == 2:
        return value
    known = not isinstance(value, Tracer) and value.ndim == 2 and value.size > 0
    if (
        not known
        or not any(jnp.issubdtype(value.dtype, kind) for kind in (np.floating, np.integer))
        or not np.all(np.isfinite(np.asarray(value)))
    ):
        raise ValueError(
            f"{name} must be a non-empty matrix (rows × columns) of finite numbers, not {value.dtype}"
            f"{list(value.shape)}: leave out rows with NaN or infinity"
        )
    return np.asarray(value)


def check_labels(labels: Any, name: str, classes: int) -> None:
    """Raise if labels are not integers from 0 to classes − 1; traced ones have no values yet."""
    check_array(labels, name, 1)
    if not jnp.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"{name} of type {labels.dtype}: expected integers 0..{classes - 1}, one for each class"
        )
    if isinstance(labels, Tracer) or not labels.size:
        return
    low, high = int(np.min(labels)), int(np.max(labels))
    if low < 0 or high >= classes:
        raise ValueError(
            f"{name} run from {low} to {high}, expected 0..{classes - 1}: leave such examples out, or number the "
            "classes from 0, e.g. by np.unique(labels, return_inverse=True)[1]"
        )


def check_generator(seed: Any) -> np.random.Generator:
    """Return NumPy's generator for a whole number or a list of them; return a generator unchanged."""
    if isinstance(seed, np.random.Generator):
        return seed
    many = isinstance(seed, list | tuple) and len(seed) > 0
    for each in seed if many else [seed]:
        check_count(each, "seed", least=0, most=math.inf)
    return np.random.default_rng(seed)


def check_dtype(dtype: Any) -> Any:
    """Return a floating dtype; raise for any other."""
    try:
        known = None if isinstance(dtype, np.ndarray | jax.Array) else jnp.dtype(dtype)
    except Exception:
        known = None
    if dtype is None or known is None or not jnp.issubdtype(known, np.floating) or known.itemsize > 8:
        raise TypeError(
            f"dtype must be a floating type that JAX has, not {shown(dtype)}: pass e.g. np.float32"
        )
    return dtype
