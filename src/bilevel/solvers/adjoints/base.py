"""Base class of the methods of one outer step for the adjoint system ∇²_yy g·v = ∇_y f; gradient steps and a series.

One gradient step is Algorithm 1 of the paper. The Neumann series for the inverse is of Lorraine et al. 2020.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from jax import lax
from optax import tree

from bilevel.checks import check_count, check_positive
from bilevel.oracles import Curvature, Product
from bilevel.solvers.parts.lagrangian import energy
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.types import Metrics, Number, PyTree, StepSize

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


class GradientSteps(Adjoint):
    """Warm-started steps of a rule on the adjoint system."""

    rule: Rule

    @property
    def step_rule(self) -> Rule:
        return self.rule

    def init(self, v: PyTree) -> PyTree:
        return self.rule.init(v)


class OneStep(GradientSteps):
    name: ClassVar[str] = "one step"

    @property
    def warm_steps(self) -> int:
        return 1

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        r = residual(inner, b, v)
        v, memory = descend(self.rule, r, memory, v, energy(inner, b))
        return v, memory, {"adjoint_residual": tree.norm(r)}


class Steps(GradientSteps):
    count: int = eqx.field(static=True)
    name: ClassVar[str] = "steps"

    @property
    def warm_steps(self) -> int:
        return self.count

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        inner = inner.shared()

        def step(carry, _):
            v, memory = carry
            r = residual(inner, b, v)
            return descend(self.rule, r, memory, v, energy(inner, b)), tree.norm(r)

        (v, memory), norms = lax.scan(step, (v, memory), length=self.count)
        return v, memory, {"adjoint_residual": norms[-1]}


class NeumannSeries(Adjoint):
    eta: Number
    products: int = eqx.field(static=True)
    name: ClassVar[str] = "Neumann"

    @property
    def step_rule(self) -> Number:
        return self.eta

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        inner = inner.shared()

        def add_term(carry, _):
            term, total = carry
            term = tree.sub(term, scaled(self.eta, inner.hessian(term)))
            return (term, tree.add(total, term)), None

        (term, total), _ = lax.scan(add_term, (b, b), length=self.products)
        return scaled(self.eta, total), memory, {"adjoint_residual": tree.norm(term)}


def one_step(rule: StepSize | Rule) -> OneStep:
    """Take one warm-started step on the quadratic ½vᵀ∇²_yy g·v − vᵀ∇_y f (line 6 of Algorithm 1).

    With a float η this is v̂ = (I − η∇²_yy g)v + η∇_y f. "adjoint_residual" belongs to v before the step.
    """
    return OneStep(as_rule(rule, "adjoint"))


def steps(rule: StepSize | Rule, count: int) -> Steps:
    """Take `count` = Q warm-started steps (AID-BiO, Ji et al. 2021; the loop choices of Ji et al. 2022).

        v_{q+1} = v_q − η (∇²_yy g·v_q − ∇_y f)        q = 0, …, Q − 1, from the last v̂

    It takes Q Hessian products. "adjoint_residual" belongs to v_{Q−1}, so measuring it takes no product. With η ≤ 1/L
    the final residual is not larger.
    """
    return Steps(as_rule(rule, "adjoint"), check_count(count, "the number of adjoint steps"))


def neumann(eta: Number, products: int) -> NeumannSeries:
    """Compute v̂ = η Σ_{i=0}^{Q} (I − η∇²_yy g)ⁱ ∇_y f, with Q Hessian products and no warm start.

    With 0 < η ≤ 1/L it leaves the residual (I − η∇²_yy g)^{Q+1} ∇_y f. More outer steps do not remove this
    bias. The series equals `steps(eta, Q + 1)` from v = 0. "adjoint_residual" is the size of the last term
    added, (I − η∇²_yy g)^Q ∇_y f, which bounds it.

    With it `aid` is the deterministic variant of BA (Ghadimi & Wang 2018). The stochastic one (BSA) draws the
    number of factors at random and multiplies by Q + 1, so one term has the same sum in expectation.

    Args:
        eta: η, at most 1/L.
        products: Q, the number of Hessian products.
    """
    check_positive(eta, "Neumann step size eta")
    return NeumannSeries(eta, check_count(products, "the number of Neumann products"))


def as_adjoint(value: Any) -> Adjoint:
    """Return a `bl.Adjoint` unchanged, and one step of a float or an optax rule."""
    return value if isinstance(value, Adjoint) else one_step(value)
