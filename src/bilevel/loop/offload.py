"""x on the host: it and the memory of its rule rest there, and come to the device for the length of a step.

Steps are then calls of their own, one after the other: a loop that carries arrays of the host's is not what compilers
are good at, and steps on an x that large are long.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bilevel.loop.state import RunState
from bilevel.words import shown

PARTS = ("x", "outer")  # the state's fields that go with x
KIND = "pinned_host"


def check_offload(offload: Any) -> bool:
    """Whether x is to rest on the host, or why that cannot be."""
    if offload is None:
        return False
    if not isinstance(offload, str) or offload != "x":
        raise ValueError(f'offload must be "x" or None, not {shown(offload)}')
    device = jax.devices()[0]
    kinds = sorted(memory.kind for memory in device.addressable_memories())
    if KIND not in kinds:
        raise ValueError(
            f'offload="x" needs a device that reads the host\'s memory of the kind {KIND}, but {device} has '
            f"{', '.join(kinds)} alone: leave it out"
        )
    tried = jax.jit(lambda: jax.device_put(jnp.zeros(1), jax.memory.Space.Host))()
    if tried.sharding.memory_kind != KIND:
        raise ValueError(
            f'offload="x" needs compiled programs that leave arrays in the host\'s memory, and those of JAX '
            f"{jax.__version__} on {device} do not: upgrade JAX, or leave it out"
        )
    return True


def stored(run: RunState) -> RunState:
    """With x and what goes with it in the host's memory; inside a compiled program too."""
    return _moved(run, jax.memory.Space.Host)


def fetched(run: RunState) -> RunState:
    """With all of it on the device."""
    return _moved(run, jax.memory.Space.Device)


def _moved(run: RunState, space: Any) -> RunState:
    def move(path: tuple, leaf: Any) -> Any:
        field, part = (getattr(key, "name", None) for key in (*path, None)[:2])
        there = (
            field != "solver" or part not in PARTS or not leaf.ndim or jax.typeof(leaf).memory_space == space
        )
        return leaf if there else jax.device_put(leaf, space)

    return jax.tree_util.tree_map_with_path(move, run)
