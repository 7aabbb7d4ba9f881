"""Checks of the values to draw: real numbers of a tree by their path, and names for them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from bilevel.checks import check_callable
from bilevel.loop.columns import is_real
from bilevel.words import shown

HUGE = 1e100  # matplotlib overflows near this


def as_numbers(value: Any) -> np.ndarray | None:
    """Return an array of floats, or None for other values than real numbers."""
    if not isinstance(value, np.ndarray | jax.Array | np.generic | int | float) or np.ma.isMaskedArray(value):
        return None
    if isinstance(value, jax.Array) and (isinstance(value, Tracer) or value.is_deleted()):
        return None
    kind = value.dtype if isinstance(value, jax.Array) else np.asarray(value).dtype
    return np.asarray(value, float) if is_real(kind) else None


def leaves(tree: Any) -> list[tuple[str, np.ndarray]]:
    """Return the arrays by their paths; none if it is no tree of real numbers."""
    try:
        found = jax.tree_util.tree_leaves_with_path(tree)
    except ValueError:  # keys of a dict that cannot be sorted
        return []
    numbers = [as_numbers(leaf) for _, leaf in found]
    places = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found]
    known = [(place, leaf) for place, leaf in zip(places, numbers, strict=True) if leaf is not None]
    return known if len(known) == len(found) else []


def transformed(transform: Callable[[Any], Any] | None, values: Any, what: str, example: str) -> Any:
    if transform is None:
        return values
    check_callable(transform, "transform", 1, f"a function of {what}", example)
    try:
        return transform(values)
    except Exception as error:
        fix = f"it is given {what}, so pass e.g. {example}"
        raise ValueError(f"transform raises {type(error).__name__} ({error}): {fix}") from error


def check_names(names: Any, count: int, what: str) -> list[str]:
    """Return one name per drawn line, or raise."""
    listed = isinstance(names, list | tuple | range) or (isinstance(names, np.ndarray) and names.ndim == 1)
    if not listed or len(names) != count:
        raise ValueError(f"labels must be a list of {count} names, one for each {what}, not {shown(names)}")
    return [str(name) for name in names]
