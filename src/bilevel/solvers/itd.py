"""Single-loop iterative differentiation (Algorithm 2 of the paper)."""

from typing import Any, NamedTuple

import jax
from optax import tree

from bilevel.checks import prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.inner import inner_step
from bilevel.solvers.rule import as_rule, descend

PyTree = Any


class ITDState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    inner: PyTree  # state of the inner rule
    outer: PyTree  # state of the outer rule


def itd(problem: Problem, inner: Any, outer: Any) -> Solver:
    """One warm-started step on y, differentiated through, and one on x:

        ŷ_k     = y_k⁰ − α ∇_y g(x_k, y_k⁰)                                    y_k⁰ = ŷ_{k−1}
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − α ∇²_xy g(x_k, y_k⁰) ∇_y f(x_k, ŷ_k))

    With another inner rule ŷ_k = U(∇_y g), −α∇_y f becomes (∂U/∂∇_y g)ᵀ∇_y f: the derivative goes through
    the rule's update of this step, its memory of earlier steps held fixed.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    oracles = problem.oracles

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> ITDState:
        x, y = prepare(problem, x0, y0, batch)
        return ITDState(x, y, inner_rule.init(y), outer_rule.init(x))

    def step(state: ITDState, batch: Batch | None = None) -> tuple[ITDState, Info]:
        x = state.x
        g = oracles.linearise(x, state.y, batch)
        update = lambda gradient: descend(inner_rule, gradient, state.inner, state.y)
        y, pull_back, inner_memory = jax.vjp(update, g.gradient, has_aux=True)  # line 4

        f = oracles.outer_gradients(x, y, batch)
        (direction,) = pull_back(f.y)  # −α∇_y f for gradient descent
        hypergradient = tree.add(f.x, g.cross(direction))  # line 5
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)  # line 6

        return ITDState(x, y, inner_memory, outer_memory), Info(f.value, hypergradient, g.gradient, {})

    return Solver("ITD", problem, ("x", "y"), init, step, warm_up=inner_step(oracles, inner_rule))
