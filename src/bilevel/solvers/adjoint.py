"""How the adjoint system ∇²_yy g·v = ∇_y f is worked on in one outer step: an ingredient of AID."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from optax import tree

from bilevel.oracles import Linearised
from bilevel.solvers.rule import as_rule, descend

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


def one_step(rule: Any) -> Adjoint:
    """One warm-started step on the quadratic ½vᵀ∇²_yy g·v − vᵀ∇_y f (line 6 of Algorithm 1).

    With a float η this is v̂ = (I − η∇²_yy g)v + η∇_y f.
    """
    rule = as_rule(rule, "adjoint")

    def solve(inner: Linearised, b: PyTree, v: PyTree, memory: PyTree):
        residual = tree.sub(inner.hessian(v), b)
        v, memory = descend(rule, residual, memory, v)
        return v, memory, {}

    return Adjoint("one step", rule.init, solve)


def as_adjoint(value: Any) -> Adjoint:
    """An [`Adjoint`][bilevel.solvers.Adjoint] as it is; a float or an optax rule as one step of it."""
    return value if isinstance(value, Adjoint) else one_step(value)
