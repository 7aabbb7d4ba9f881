"""How the adjoint system ∇²_yy g·v = ∇_y f is worked on in one outer step: an ingredient of AID."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from optax import tree

from bilevel.oracles import Linearised

PyTree = Any


@dataclass(frozen=True, eq=False)
class Adjoint:
    """`init(v) -> memory` and `solve(inner, b, v, memory) -> (v, memory, metrics)`.

    `inner` is the inner objective linearised at (x_k, ŷ_k), `b` is ∇_y f there, and `v` the last solution,
    to warm-start from. An ingredient that sets out to solve the system reports how far it got, the residual
    ‖∇²_yy g·v − b‖, under "adjoint_residual" in `metrics`.
    """

    name: str
    init: Callable[[PyTree], PyTree]
    solve: Callable[[Linearised, PyTree, PyTree, PyTree], tuple[PyTree, PyTree, dict]]


def residual(inner: Linearised, b: PyTree, v: PyTree) -> PyTree:
    """∇²_yy g·v − b, the gradient of ½vᵀ∇²_yy g·v − vᵀb. One Hessian product."""
    return tree.sub(inner.hessian(v), b)


def no_memory(v: PyTree) -> tuple:
    return ()
