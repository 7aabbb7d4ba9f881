"""Meshes whose types JAX checks while it traces: what to write instead where the loop cannot follow them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import AxisType

from bilevel.arrays import is_explicit
from bilevel.checks.objects import is_ours


@contextmanager
def explained_on_mesh(*trees: Any) -> Iterator[None]:
    """Add what to do where JAX refuses arrays of an Explicit mesh, or a loop inside `jax.shard_map`."""
    try:
        yield
    except Exception as error:
        remedy = "" if is_ours(error) else _remedy(trees)
        if not remedy:
            raise
        raise ValueError(remedy) from error


def _remedy(trees: Any) -> str:
    if AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        return (
            "JAX refused a loop inside jax.shard_map, because an array in it begins as the same on all devices and "
            "ends as another on each: pass check_vma=False to jax.shard_map"
        )
    if any(is_explicit(leaf) for leaf in jax.tree.leaves(trees)):
        return (
            "an array lies on a mesh whose axes are Explicit, the default of jax.make_mesh, and inside jit or vmap "
            "every operation on it must then name its sharding, which objectives do not: make the mesh with "
            "jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))"
        )
    return ""
