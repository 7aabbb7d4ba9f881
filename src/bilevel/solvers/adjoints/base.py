"""How the adjoint system ∇²_yy g·v = ∇_y f is worked on in one outer step: an ingredient of AID."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from optax import tree

from bilevel.oracles import Curvature, Product
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Metrics, PyTree

INDEFINITE = "adjoint_indefinite"  # the metric that says whether ∇²_yy g was seen not to be positive definite


class Adjoint(eqx.Module):
    """`init(v) -> memory` and `solve(inner, b, v, memory) -> (v, memory, metrics)`.

    `inner` has the second derivatives of g at (x_k, ŷ_k), `b` is ∇_y f there, and `v` the last solution, to
    warm-start from. Every `inner.hessian(v)` is a pass through the model of its own; an ingredient that takes several
    asks for `inner.shared()` first, whose products share one linearization. One that sets out to solve the system
    reports how far it got, the residual ‖∇²_yy g·v − b‖, under "adjoint_residual" in `metrics`. Like a solver it is a
    pytree: step sizes are leaves.
    """

    name: ClassVar[str] = "adjoint"

    @property
    def step_rule(self) -> Any:
        """The rule, or the step size of a series, by which v moves; `None` if it has none."""
        return None

    @property
    def warm_steps(self) -> int:
        """The number of gradient steps from the last v; 0 for other ingredients."""
        return 0

    def allows(self, curvature: float) -> bool:
        """Return whether it can solve systems whose smallest eigenvalue is this negative number."""
        return False

    def init(self, v: PyTree) -> PyTree:
        return ()

    @abstractmethod
    def solve(
        self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree
    ) -> tuple[PyTree, PyTree, Metrics]: ...


def with_damping(inner: Curvature, damping: Any) -> Curvature:
    """The same with ∇²_yy g + δI in the place of ∇²_yy g."""
    return with_curvature(inner, lambda product: lambda v: tree.add(product(v), scaled(damping, v)))


def with_curvature(
    inner: Curvature, around: Callable[[Product], Product], cross: Product | None = None
) -> Curvature:
    """The same with `around` its products with curvature, the Hessian's and Gauss–Newton's."""
    deferred = lambda offered: None if offered is None else lambda: around(offered())
    return Curvature(
        hessian=around(inner.hessian),
        cross=cross or inner.cross,
        gauss_newton=deferred(inner.gauss_newton),
        linearized=deferred(inner.linearized),
    )


def residual(inner: Curvature, b: PyTree, v: PyTree) -> PyTree:
    """∇²_yy g·v − b, the gradient of ½vᵀ∇²_yy g·v − vᵀb. One Hessian product."""
    return tree.sub(inner.hessian(v), b)
