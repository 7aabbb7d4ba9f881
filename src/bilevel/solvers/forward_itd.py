"""ITD in forward mode: the hypergradient of several inner steps, none of which is stored (Franceschi et al. 2017)."""

from typing import ClassVar

import equinox as eqx

from bilevel.batch import Batch
from bilevel.checks import check_count, check_problem, prepare
from bilevel.problem import Problem
from bilevel.solvers.base import ExplicitState, Info, Solver
from bilevel.solvers.ingredients.forward import forward_hypergradient, no_derivative, push
from bilevel.solvers.ingredients.inner import inner_loop
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.types import PyTree, StepSize


class ForwardITD(Solver):
    inner: Rule
    outer: Rule
    inner_steps: int = eqx.field(static=True)
    name: ClassVar[str] = "forward ITD"
    through_rule: ClassVar[bool] = True
    curved: ClassVar[bool] = True
    composite: ClassVar[bool] = True

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> ExplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        return ExplicitState(x, y, self.inner.init(y), self.outer.init(x))

    def step(self, state: ExplicitState, batch: Batch | None = None) -> tuple[ExplicitState, Info]:
        x, problem = state.x, self.problem
        zero = no_derivative(x, state.y, state.inner)
        y, inner_memory, z, gradient = push(
            problem, self.inner, self.inner_steps, x, state.y, state.inner, zero, batch
        )
        f, hypergradient = forward_hypergradient(problem, x, y, z, batch)
        y_of = lambda x: inner_loop(problem, self.inner, self.inner_steps, x, state.y, state.inner, batch)[0]
        value = lambda x: problem.f(x, y_of(x), batch)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        return ExplicitState(x, y, inner_memory, outer_memory), Info(f, hypergradient, gradient, {})


def forward_itd(
    problem: Problem, inner: StepSize | Rule, outer: StepSize | Rule, *, inner_steps: int = 1
) -> ForwardITD:
    """`bl.itd` with its hypergradient in forward mode: the same iterates, other costs.

        Z_{t+1} = (I − α∇²_yy g(x_k, y_k^t)) Z_t − α∇²_yx g(x_k, y_k^t)    Z_0 = 0,   y_k⁰ = y_{k−1}^N
        x_{k+1} = x_k − β (∇_x f(x_k, y_k^N) + Z_Nᵀ∇_y f(x_k, y_k^N))

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of steps on y per step on x, all on the same batch.
    """
    return ForwardITD(
        check_problem(problem),
        as_rule(inner, "inner"),
        as_rule(outer, "outer"),
        check_count(inner_steps, "inner_steps"),
    )
