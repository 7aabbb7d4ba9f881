"""What drives the host cannot be compiled itself."""

from typing import Any

import numpy as np
from jax import lax
from jax.core import Tracer

from bilevel.arrays import leaves_of
from bilevel.batch import Batch
from bilevel.loop.data.streams import Stream

ZERO = np.float32(0)


def check_untraced(what: str, given: dict[str, Any]) -> None:
    """Refuses to run inside a transformation, whether one of the arguments is traced or not."""
    traced = [name for name, value in given.items() if _traced(value, name)]
    if traced or isinstance(lax.neg(ZERO), Tracer):  # as is everything that is made there
        where = traced[0] if traced else "everything"
        raise TypeError(
            f"{what} drives the host and cannot run inside jit, vmap or grad, where {where} is traced: use bl.scan "
            "there, or bl.sweep for many runs"
        )


def _traced(value: Any, name: str) -> bool:
    if name == "data" and not isinstance(value, Batch | Stream):
        return isinstance(value, Tracer)  # a loader is no tree
    return any(isinstance(leaf, Tracer) for leaf in leaves_of(value, name))
