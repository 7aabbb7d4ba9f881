"""Base class of the methods of one outer step for the adjoint system ∇²_yy g·v = ∇_y f."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from optax import tree

from bilevel.oracles import Curvature, Product
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Metrics, PyTree

INDEFINITE = "adjoint_indefinite"  # the metric that reports a ∇²_yy g that is not positive definite


class Adjoint(eqx.Module):
    """`init(v) -> memory` and `solve(inner, b, v, memory) -> (v, memory, metrics)`.

    `inner` has the second derivatives of g at (x_k, ŷ_k), `b` is ∇_y f there, and `v` is the last solution,
    for a warm start. Every `inner.hessian(v)` is a separate pass through the model. A method that takes
    several products calls `inner.shared()` first, so that they share one linearization. A method that solves
    the system reports the residual ‖∇²_yy g·v − b‖ under "adjoint_residual" in `metrics`. Like a solver it is
    a pytree: step sizes are leaves.
    """

    name: ClassVar[str] = "adjoint"

    @property
    def step_rule(self) -> Any:
        """Return the rule that moves v, or the step size of a series; `None` without one."""
        return None

    @property
    def warm_steps(self) -> int:
        """Return the number of gradient steps from the last v; 0 for other methods."""
        return 0

    def allows(self, curvature: float) -> bool:
        """Return whether the method can solve systems whose smallest eigenvalue is this negative number."""
        return False

    def init(self, v: PyTree) -> PyTree:
        return ()

    @abstractmethod
    def solve(
        self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree
    ) -> tuple[PyTree, PyTree, Metrics]: ...


def with_damping(inner: Curvature, damping: Any) -> Curvature:
    """Return the curvature with ∇²_yy g + δI in place of ∇²_yy g."""
    return with_curvature(inner, lambda product: lambda v: tree.add(product(v), scaled(damping, v)))


def with_curvature(
    inner: Curvature, around: Callable[[Product], Product], cross: Product | None = None
) -> Curvature:
    """Return the curvature with `around` applied to its products, the Hessian's and Gauss–Newton's."""
    deferred = lambda offered: None if offered is None else lambda: around(offered())
    return Curvature(
        hessian=around(inner.hessian),
        cross=cross or inner.cross,
        gauss_newton=deferred(inner.gauss_newton),
        linearized=deferred(inner.linearized),
    )


def residual(inner: Curvature, b: PyTree, v: PyTree) -> PyTree:
    """Return ∇²_yy g·v − b, the gradient of ½vᵀ∇²_yy g·v − vᵀb, from one Hessian product."""
    return tree.sub(inner.hessian(v), b)
