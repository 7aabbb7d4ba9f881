"""Gradient steps on the adjoint system, warm-started: one (Algorithm 1 of the paper) or several."""

from typing import Any, ClassVar

import equinox as eqx
from jax import lax
from optax import tree

from bilevel.checks import check_count
from bilevel.oracles import Curvature
from bilevel.solvers.adjoints.base import Adjoint, residual
from bilevel.solvers.parts.lagrangian import energy
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.types import Metrics, PyTree, StepSize


class OneStep(Adjoint):
    rule: Rule
    name: ClassVar[str] = "one step"

    @property
    def step_rule(self) -> Rule:
        return self.rule

    @property
    def warm_steps(self) -> int:
        return 1

    def init(self, v: PyTree) -> PyTree:
        return self.rule.init(v)

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        r = residual(inner, b, v)
        v, memory = descend(self.rule, r, memory, v, energy(inner, b))
        return v, memory, {"adjoint_residual": tree.norm(r)}


class Steps(Adjoint):
    rule: Rule
    count: int = eqx.field(static=True)
    name: ClassVar[str] = "steps"

    @property
    def step_rule(self) -> Rule:
        return self.rule

    @property
    def warm_steps(self) -> int:
        return self.count

    def init(self, v: PyTree) -> PyTree:
        return self.rule.init(v)

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        inner = inner.shared()

        def step(carry, _):
            v, memory = carry
            r = residual(inner, b, v)
            return descend(self.rule, r, memory, v, energy(inner, b)), tree.norm(r)

        (v, memory), norms = lax.scan(step, (v, memory), length=self.count)
        return v, memory, {"adjoint_residual": norms[-1]}


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


def as_adjoint(value: Any) -> Adjoint:
    """Return a `bl.Adjoint` unchanged, and one step of a float or an optax rule."""
    return value if isinstance(value, Adjoint) else one_step(value)
