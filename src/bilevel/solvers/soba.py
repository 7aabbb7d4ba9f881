"""SOBA: the three variables move at once, from one linearisation (Dagréou et al. 2022)."""

from typing import ClassVar

import equinox as eqx
from optax import tree

from bilevel.batch import Batch, Draws, draws
from bilevel.checks import prepare
from bilevel.problem import Problem
from bilevel.solvers.base import ImplicitState, Info, Solver, check_batches
from bilevel.solvers.ingredients.lagrangian import energy, lagrangian
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.types import PyTree, StepSize


class SOBA(Solver):
    inner: Rule
    adjoint: Rule
    outer: Rule
    batches: str = eqx.field(static=True)
    name: ClassVar[str] = "SOBA"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")
    independent: ClassVar[int] = 3
    outer_at: ClassVar[str] = "start"

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> ImplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        v = tree.zeros_like(y)
        return ImplicitState(x, y, v, self.inner.init(y), self.adjoint.init(v), self.outer.init(x))

    def step(self, state: ImplicitState, batch: Batch | Draws | None = None) -> tuple[ImplicitState, Info]:
        x, y, v, problem, oracles = state.x, state.y, state.v, self.problem, self.problem.oracles
        drawn = [draws(batch)[i] for i in range(self.draws)]
        at = [(oracles.linearise(x, y, each), oracles.outer_gradients(x, y, each)) for each in drawn]
        (g, _), (h, b), (c, f) = (3 * at)[:3]
        residual = tree.sub(h.hessian(v), b.y)
        hypergradient = tree.sub(f.x, c.cross(v))

        g_value, value = lambda y: problem.g(state.x, y, drawn[0]), lagrangian(problem, y, v, drawn[-1])
        y, inner_memory = descend(self.inner, g.gradient, state.inner, y, g_value)
        v, adjoint_memory = descend(self.adjoint, residual, state.adjoint, v, energy(h, b.y))
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        state = ImplicitState(x, y, v, inner_memory, adjoint_memory, outer_memory)
        return state, Info(f.value, hypergradient, g.gradient, {"adjoint_residual": tree.norm(residual)})


def soba(
    problem: Problem, inner: StepSize, adjoint: StepSize, outer: StepSize, *, batches: str = "shared"
) -> SOBA:
    """Every direction is taken at (x_k, y_k, v_k), the point the step starts from:

        y_{k+1} = y_k − α ∇_y g(x_k, y_k)
        v_{k+1} = v_k − η (∇²_yy g(x_k, y_k) v_k − ∇_y f(x_k, y_k))
        x_{k+1} = x_k − β (∇_x f(x_k, y_k) − ∇²_xy g(x_k, y_k) v_k)

    One linearisation of ∇g serves all three: 30 % fewer operations than Algorithm 1, whose products wait for ŷ_k; the
    stationary points are those of [`aid`][bilevel.aid]. Published with decreasing step sizes: pass optax schedules.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        batches: "shared", one draw of each level for all directions, as in the authors' code; or "independent", three.
    """
    rules = as_rule(inner, "inner"), as_rule(adjoint, "adjoint"), as_rule(outer, "outer")
    return SOBA(problem, *rules, check_batches(batches))
