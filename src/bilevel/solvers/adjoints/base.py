"""How the adjoint system ∇²_yy g·v = ∇_y f is worked on in one outer step: an ingredient of AID."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from optax import tree

from bilevel.oracles import Linearised
from bilevel.solvers.ingredients.trees import scaled
from bilevel.types import Metrics, PyTree

Product = Callable[[PyTree], PyTree]


INDEFINITE = "adjoint_indefinite"  # the metric that says whether ∇²_yy g was seen not to be positive definite


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


def with_damping(inner: Linearised, damping: Any) -> Linearised:
    """The same with ∇²_yy g + δI in the place of ∇²_yy g."""
    return with_curvature(inner, lambda product: lambda v: tree.add(product(v), scaled(damping, v)))


def with_curvature(
    inner: Linearised, around: Callable[[Product], Product], cross: Product | None = None
) -> Linearised:
    """The same with `around` its products with curvature, the Hessian's and Gauss–Newton's."""
    offered = inner.gauss_newton
    gauss_newton = None if offered is None else lambda: around(offered())
    return Linearised(inner.gradient, around(inner.hessian), cross or inner.cross, gauss_newton)


def residual(inner: Linearised, b: PyTree, v: PyTree) -> PyTree:
    """∇²_yy g·v − b, the gradient of ½vᵀ∇²_yy g·v − vᵀb. One Hessian product."""
    return tree.sub(inner.hessian(v), b)
