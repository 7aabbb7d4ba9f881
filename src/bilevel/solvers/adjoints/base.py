"""How the adjoint system ∇²_yy g·v = ∇_y f is worked on in one outer step: an ingredient of AID."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
from optax import tree

from bilevel.oracles import Linearised
from bilevel.types import Metrics, PyTree


class Adjoint(eqx.Module):
    """`init(v) -> memory` and `solve(inner, b, v, memory) -> (v, memory, metrics)`.

    `inner` is the inner objective linearised at (x_k, ŷ_k), `b` is ∇_y f there, and `v` the last solution,
    to warm-start from. An ingredient that sets out to solve the system reports how far it got, the residual
    ‖∇²_yy g·v − b‖, under "adjoint_residual" in `metrics`. Like a solver it is a pytree: step sizes are leaves.
    """

    name: ClassVar[str] = "adjoint"

    def init(self, v: PyTree) -> PyTree:
        return ()

    @abstractmethod
    def solve(
        self, inner: Linearised, b: PyTree, v: PyTree, memory: PyTree
    ) -> tuple[PyTree, PyTree, Metrics]: ...


def residual(inner: Linearised, b: PyTree, v: PyTree) -> PyTree:
    """∇²_yy g·v − b, the gradient of ½vᵀ∇²_yy g·v − vᵀb. One Hessian product."""
    return tree.sub(inner.hessian(v), b)
