"""Any adjoint ingredient on another curvature than ∇²_yy g: damped, or Gauss–Newton's."""

from typing import ClassVar

from bilevel.checks import check_positive
from bilevel.oracles import Curvature
from bilevel.solvers.adjoints.base import Adjoint, with_damping
from bilevel.solvers.adjoints.gradient_steps import as_adjoint
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
                "objective does not say: write it as bl.composed(model, loss), or take adjoints.damped alone"
            )
        return self.adjoint.solve(inner._replace(hessian=inner.gauss_newton(), linearized=None), b, v, memory)


def damped(adjoint: StepSize | Rule | Adjoint, damping: Number) -> Damped:
    """`adjoint` on (∇²_yy g + δI)·v = ∇_y f.

    With δ above −λ_min(∇²_yy g) the system is positive definite, so that CG works and one step at a time no longer
    grows, and ‖v‖ ≤ ‖∇_y f‖/(λ_min + δ). The price is a bias that stays. Where ∇²_yy g has the eigenvalue λ, v comes
    out as λ/(λ + δ) of what it should be: on a μ-strongly convex g its relative error is at most δ/(μ + δ).

    "adjoint_residual" is that of the damped system. No further products. A damping of the size of the inner
    problem's own ridge costs at most half of v where there is no other curvature, and little elsewhere.

    Args:
        adjoint: any `bl.Adjoint`; a float or an optax rule is one step of it.
        damping: δ > 0.
    """
    check_positive(damping, "damping")
    return Damped(as_adjoint(adjoint), damping)


def gauss_newton(adjoint: StepSize | Rule | Adjoint) -> GaussNewton:
    """`adjoint` on G·v = ∇_y f with the Gauss–Newton matrix G = Jᵀ(∇²loss)J + ∇²penalty in place of ∇²_yy g.

    The inner objective is `bl.composed(model, loss, penalty)`, which says what they are. G is
    positive semidefinite if loss and penalty are convex, whatever the model (Schraudolph 2002), and a product
    with it is cheaper than one with the Hessian; it counts as one. The cross product stays exact. Without a penalty G
    may be singular: add `bl.adjoints.damped`, inside or outside of this one.

    What stays as a bias is the model's own curvature: ∇²_yy g − G = Σ_i (∂loss/∂p_i) ∇²_yy p_i =: E leaves
    v with the error G⁻¹E·v*, where v* is the exact one. E is zero where the model is linear in y or fits its targets.

    Args:
        adjoint: any `bl.Adjoint`; a float or an optax rule is one step of it.
    """
    return GaussNewton(as_adjoint(adjoint))
