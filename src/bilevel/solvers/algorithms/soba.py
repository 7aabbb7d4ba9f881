"""SOBA, whose three variables move at once (Dagréou et al. 2022)."""

from typing import ClassVar

from bilevel.batch import draws
from bilevel.solvers.adjoints.base import Adjoint, as_adjoint
from bilevel.solvers.kit import Batch, Draws, ImplicitSolver, ImplicitState, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, check_batches, factory, field
from bilevel.types import StepSize


class SOBA(ImplicitSolver):
    adjoint: Adjoint = field(converter=as_adjoint)
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "SOBA"
    traits: ClassVar[Traits] = Traits(
        supports_prox=True, inner_rule="differentiable", outer_at="start", extra_draws=2
    )

    def step(self, state: ImplicitState, batch: Batch | Draws | None = None) -> tuple[ImplicitState, Info]:
        x, y, v, inner, adjoint, outer = state
        drawn = [draws(batch)[i] for i in range(self.draws)]  # for y, v and x, or one for all
        system = self.system(x, y, inner, drawn, v)
        hypergradient, inner_gradient = system.hypergradient(v), self.residual(state, system.gradient)
        value = lambda y: self.problem.g(state.x, y, drawn[0])

        y, inner = descend(self.inner_at(x), system.gradient, inner, y, value)
        x, outer = descend(self.outer, hypergradient, outer, x, system.lagrangian(v))
        v, adjoint, metrics = system.solve(v, adjoint)
        info = Info(system.f.value, hypergradient, inner_gradient, metrics)
        return ImplicitState(x, y, v, inner, adjoint, outer), info


@factory()
def soba(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: StepSize | Rule | Adjoint,
    outer: StepSize | Rule,
    batches: str = "shared",
) -> SOBA:
    """Take every direction at (x_k, y_k, v_k), the point where the step starts:

        y_{k+1} = y_k − α ∇_y g(x_k, y_k)
        v_{k+1} = v_k − η (∇²_yy g(x_k, y_k) v_k − ∇_y f(x_k, y_k))
        x_{k+1} = x_k − β (∇_x f(x_k, y_k) − ∇²_xy g(x_k, y_k) v_k)

    One pass forward and back serves all three. That takes 30 % fewer operations than Algorithm 1, whose products need
    ŷ_k first. The stationary points are the same as in `bl.aid`. The publication has decreasing step sizes: pass optax
    schedules.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, any optax transformation, or a `bl.Adjoint`.
        outer: β as a float, or any optax transformation.
        batches: "shared", one draw of each level for all directions, as in the authors' code; or "independent", three.
    """
    return SOBA(problem, inner, adjoint, outer, batches)
