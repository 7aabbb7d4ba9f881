"""Adjoint methods on another curvature than ∇²_yy g: damped, or Gauss–Newton's."""

from typing import ClassVar

from bilevel.checks import check_positive
from bilevel.oracles import Curvature
from bilevel.solvers.adjoints.base import Adjoint, as_adjoint, with_damping
from bilevel.solvers.rules import Rule
from bilevel.types import Metrics, Number, PyTree, StepSize


class Damped(Adjoint):
    adjoint: Adjoint
    damping: Number
    name: ClassVar[str] = "damped"

    def allows(self, curvature: float) -> bool:
        return float(self.damping) > -curvature or self.adjoint.allows(curvature)

    def init(self, v: PyTree) -> PyTree:
        return self.adjoint.init(v)

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        return self.adjoint.solve(with_damping(inner, self.damping), b, v, memory)


class GaussNewton(Adjoint):
    adjoint: Adjoint
    name: ClassVar[str] = "Gauss–Newton"

    def allows(self, curvature: float) -> bool:
        return True

    def init(self, v: PyTree) -> PyTree:
        return self.adjoint.init(v)

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        if inner.gauss_newton is None:
            raise TypeError(
                "adjoints.gauss_newton needs to know where the model ends and the loss begins, and this inner "
                "objective does not say: write it as bl.composed(model, loss), or take only adjoints.damped"
            )
        return self.adjoint.solve(inner._replace(hessian=inner.gauss_newton(), linearized=None), b, v, memory)


def damped(adjoint: StepSize | Rule | Adjoint, damping: Number) -> Damped:
    """Return `adjoint` on (∇²_yy g + δI)·v = ∇_y f.

    With δ above −λ_min(∇²_yy g) the system is positive definite. Then CG works, one step at a time does not
    diverge, and ‖v‖ ≤ ‖∇_y f‖/(λ_min + δ). The price is a permanent bias. Along an eigenvector of ∇²_yy g
    with the eigenvalue λ, v is λ/(λ + δ) of the exact value. On a μ-strongly convex g its relative error is
    at most δ/(μ + δ).

    "adjoint_residual" belongs to the damped system. Damping takes no further products. A damping of the size
    of the inner problem's ridge costs at most half of v where there is no other curvature, and little
    elsewhere.

    Args:
        adjoint: any `bl.Adjoint`; a float or an optax rule is one step of it.
        damping: δ > 0.
    """
    check_positive(damping, "damping")
    return Damped(as_adjoint(adjoint), damping)


def gauss_newton(adjoint: StepSize | Rule | Adjoint) -> GaussNewton:
    """Return `adjoint` on G·v = ∇_y f, with the Gauss–Newton matrix G in place of ∇²_yy g.

    G = Jᵀ(∇²loss)J + ∇²penalty, as defined by the inner objective `bl.composed(model, loss, penalty)`. G is
    positive semidefinite if loss and penalty are convex, for any model (Schraudolph 2002). A product with it
    is cheaper than one with the Hessian, and counts as one. The cross product stays exact. Without a penalty
    G may be singular: add `bl.adjoints.damped`, inside or outside of this one.

    The model's curvature remains as a bias: ∇²_yy g − G = Σ_i (∂loss/∂p_i) ∇²_yy p_i =: E leaves the error
    G⁻¹E·v* in v, where v* is the exact solution. E is zero where the model is linear in y or fits its
    targets.

    Args:
        adjoint: any `bl.Adjoint`; a float or an optax rule is one step of it.
    """
    return GaussNewton(as_adjoint(adjoint))
