"""SOBA: the three variables move at once, from one pass (Dagréou et al. 2022)."""

from typing import ClassVar

import equinox as eqx
from optax import tree

from bilevel.batch import Batch, Draws, draws
from bilevel.checks import check_problem, prepare
from bilevel.problem import Problem
from bilevel.solvers.adjoints.base import Adjoint
from bilevel.solvers.adjoints.gradient_steps import as_adjoint
from bilevel.solvers.base import ImplicitState, Info, Solver, check_batches
from bilevel.solvers.fixed_points import adjoint_system, check_rests, residual
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.solvers.traits import Traits
from bilevel.types import PyTree, StepSize


class SOBA(Solver):
    inner: Rule
    adjoint: Adjoint
    outer: Rule
    batches: str = eqx.field(static=True)
    name: ClassVar[str] = "SOBA"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")
    traits: ClassVar[Traits] = Traits(supports_prox=True, outer_at="start", independent_draws=3)

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> ImplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        check_rests(self, y)
        v = tree.zeros_like(y)
        return ImplicitState(x, y, v, self.inner.init(y), self.adjoint.init(v), self.outer.init(x))

    def step(self, state: ImplicitState, batch: Batch | Draws | None = None) -> tuple[ImplicitState, Info]:
        x, y, v, problem, oracles = state.x, state.y, state.v, self.problem, self.problem.oracles
        drawn = [draws(batch)[i] for i in range(self.draws)]
        rule, value = self.inner_at(x), lambda y: problem.g(state.x, y, drawn[0])

        def look(batch):
            g, f = oracles.along(x, y, v, batch), oracles.outer_gradients(x, y, batch)
            curvature = oracles.curvature(x, y, batch).knowing(v, g)
            return g, f, adjoint_system(problem, rule, state.inner, x, y, curvature, f.y, batch, g.gradient)

        seen = [look(each) for each in drawn]  # for y, v and x; one for all three if shared
        (g, _, _), (_, _, (for_v, b, _)), (_, f, (for_x, _, lagrangian)) = (3 * seen)[:3]
        inner_gradient = residual(problem, rule, state.inner, y, g.gradient)
        hypergradient = tree.sub(f.x, for_x.cross(v))

        y, inner_memory = descend(rule, g.gradient, state.inner, y, value)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, lagrangian(v))
        v, adjoint_memory, metrics = self.adjoint.solve(for_v, b, v, state.adjoint)
        state = ImplicitState(x, y, v, inner_memory, adjoint_memory, outer_memory)
        return state, Info(f.value, hypergradient, inner_gradient, metrics)


def soba(
    problem: Problem,
    inner: StepSize | Rule,
    adjoint: StepSize | Rule | Adjoint,
    outer: StepSize | Rule,
    *,
    batches: str = "shared",
) -> SOBA:
    """Every direction is taken at (x_k, y_k, v_k), the point the step starts from:

        y_{k+1} = y_k − α ∇_y g(x_k, y_k)
        v_{k+1} = v_k − η (∇²_yy g(x_k, y_k) v_k − ∇_y f(x_k, y_k))
        x_{k+1} = x_k − β (∇_x f(x_k, y_k) − ∇²_xy g(x_k, y_k) v_k)

    One pass forward and back serves all three: 30 % fewer operations than Algorithm 1, whose products wait for ŷ_k; the
    stationary points are those of `bl.aid`. Published with decreasing step sizes: pass optax schedules.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, any optax transformation, or an `bl.Adjoint`.
        outer: β as a float, or any optax transformation.
        batches: "shared", one draw of each level for all directions, as in the authors' code; or "independent", three.
    """
    rules = as_rule(inner, "inner"), as_adjoint(adjoint), as_rule(outer, "outer")
    return SOBA(check_problem(problem), *rules, check_batches(batches))
