"""SAMA: implicit differentiation with the identity for the inner Jacobian (Choe et al. 2023)."""

from typing import Any, NamedTuple

import jax
from optax import tree

from bilevel.checks import prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.difference import cross_difference
from bilevel.solvers.inner import inner_step
from bilevel.solvers.rule import as_rule, check_positive, descend

PyTree = Any


class SAMAState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    inner: PyTree  # state of the inner rule
    outer: PyTree  # state of the outer rule


def sama(problem: Problem, inner: Any, outer: Any, *, epsilon: float = 0.01) -> Solver:
    """One step of the inner rule u, then a finite difference along ∇_y f adapted to that rule:

        ŷ_k     = y_k⁰ − u(∇_y g(x_k, y_k⁰))                               y_k⁰ = ŷ_{k−1}
        v       = (∂u/∂∇_y g)ᵀ ∇_y f(x_k, ŷ_k),   h = epsilon / ‖v‖
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − (∇_x g(x_k, ŷ_k + hv) − ∇_x g(x_k, ŷ_k − hv)) / 2h)

    What it neglects: it differentiates the fixed point u(∇_y g) = 0 and replaces the Jacobian ∂u/∂y by the
    identity. With gradient descent u = α∇_y g that is (∇²_yy g)⁻¹ ≈ αI, so its limit is single-loop ITD's,
    bias included; an adaptive rule makes the guess a diagonal that fits better. Three gradients of g and
    no second derivative. The difference adds an error of order epsilon².

    Differences from the publication: ∂u/∂∇_y g is obtained by differentiating the optax rule, exactly and for
    every rule, where the authors' code has a formula for Adam and the identity for SGD (that is v = ∇_y f
    without the step size α); and y is left at ŷ_k, where their code leaves it at ŷ_k − hv.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        epsilon: the displacement of y in the difference.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    check_positive(epsilon, "displacement epsilon")
    oracles = problem.oracles

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> SAMAState:
        x, y = prepare(problem, x0, y0, batch)
        return SAMAState(x, y, inner_rule.init(y), outer_rule.init(x))

    def step(state: SAMAState, batch: Batch | None = None) -> tuple[SAMAState, Info]:
        x = state.x
        inner_gradient = oracles.inner_gradient(x, state.y, batch)
        update = lambda gradient: descend(inner_rule, gradient, state.inner, state.y)
        y, pull_back, inner_memory = jax.vjp(update, inner_gradient, has_aux=True)

        f = oracles.outer_gradients(x, y, batch)
        (minus_v,) = pull_back(f.y)
        hypergradient = tree.add(f.x, cross_difference(oracles, x, y, minus_v, epsilon, batch))
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)
        return SAMAState(x, y, inner_memory, outer_memory), Info(f.value, hypergradient, inner_gradient, {})

    return Solver("SAMA", problem, ("x", "y"), init, step, warm_up=inner_step(oracles, inner_rule))
