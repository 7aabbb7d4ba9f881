"""Gradient steps on the adjoint system, warm-started: one (Algorithm 1 of the paper) or several."""

from typing import Any

from jax import lax
from optax import tree

from bilevel.checks import check_count
from bilevel.oracles import Linearised
from bilevel.solvers.adjoints.base import Adjoint, residual
from bilevel.solvers.rule import as_rule, descend

PyTree = Any


def one_step(rule: Any) -> Adjoint:
    """One warm-started step on the quadratic ½vᵀ∇²_yy g·v − vᵀ∇_y f (line 6 of Algorithm 1).

    With a float η this is v̂ = (I − η∇²_yy g)v + η∇_y f.
    """
    rule = as_rule(rule, "adjoint")

    def solve(inner: Linearised, b: PyTree, v: PyTree, memory: PyTree):
        v, memory = descend(rule, residual(inner, b, v), memory, v)
        return v, memory, {}

    return Adjoint("one step", rule.init, solve)


def steps(rule: Any, count: int) -> Adjoint:
    """`count` = Q warm-started steps (AID-BiO, Ji et al. 2021; the loop choices of Ji et al. 2022).

        v_{q+1} = v_q − η (∇²_yy g·v_q − ∇_y f)        q = 0, …, Q − 1, from the last v̂

    Q Hessian products. "adjoint_residual" is that of v_{Q−1}, the last one seen: no product is spent on
    measuring, and with η ≤ 1/L the residual left behind is not larger.
    """
    rule, count = as_rule(rule, "adjoint"), check_count(count, "the number of adjoint steps")

    def solve(inner: Linearised, b: PyTree, v: PyTree, memory: PyTree):
        def step(carry, _):
            v, memory = carry
            r = residual(inner, b, v)
            return descend(rule, r, memory, v), tree.norm(r)

        (v, memory), norms = lax.scan(step, (v, memory), length=count)
        return v, memory, {"adjoint_residual": norms[-1]}

    return Adjoint(f"{count} steps", rule.init, solve)


def as_adjoint(value: Any) -> Adjoint:
    """An [`Adjoint`][bilevel.solvers.Adjoint] as it is; a float or an optax rule as one step of it."""
    return value if isinstance(value, Adjoint) else one_step(value)
