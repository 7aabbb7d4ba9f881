"""Checks of data: arrays with one row per example, labels of classes, seeds and dtypes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.checks.numbers import check_count
from bilevel.words import shown


def check_array(value: Any, name: str, rank: int | None = None) -> Any:
    """Return an array of numbers of rank `rank`, or of rank 1 or more without it; raise for anything else."""
    arrays = np.ndarray | jax.Array | jax.ShapeDtypeStruct  # shapes are enough
    known = isinstance(value, arrays) and not np.ma.isMaskedArray(value)
    if known and isinstance(value, jax.Array) and not isinstance(value, Tracer):
        known = not value.is_deleted()
    numbers = known and any(jnp.issubdtype(value.dtype, kind) for kind in (np.number, np.bool_))
    if not numbers or (value.ndim < 1 if rank is None else value.ndim != rank):
        what = (
            "an array of numbers with one row per example"
            if rank is None
            else f"an array of numbers of rank {rank}"
        )
        found = f"{value.dtype}{list(value.shape)}" if known else shown(value)
        raise TypeError(
            f"{name} must be {what}, not {found}: convert it, e.g. by np.asarray(..., dtype=float)"
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
