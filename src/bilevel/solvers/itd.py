"""Iterative differentiation: Algorithm 2 of the paper, and its relatives with several inner steps."""

from typing import ClassVar

import equinox as eqx
from optax import tree

from bilevel.batch import Batch
from bilevel.checks import check_problem, prepare
from bilevel.problem import Problem
from bilevel.solvers.base import ExplicitState, Info, Solver
from bilevel.solvers.ingredients.unroll import Lengths, inner_field, lengths, unroll
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.types import PyTree, StepSize


class ITD(Solver):
    inner: Rule
    outer: Rule
    lengths: Lengths = eqx.field(static=True)
    name: ClassVar[str] = "ITD"
    through_rule: ClassVar[bool] = True
    curved: ClassVar[bool] = True
    composite: ClassVar[bool] = True

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> ExplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        return ExplicitState(x, y, self.inner.init(y), self.outer.init(x))

    def step(self, state: ExplicitState, batch: Batch | None = None) -> tuple[ExplicitState, Info]:
        x, problem = state.x, self.problem
        y, inner_memory, gradient, pull_back, repeat = unroll(
            inner_field(problem), self.inner, self.lengths, x, state.y, state.inner, batch
        )  # line 4
        f = problem.oracles.outer_gradients(x, y, batch)
        hypergradient = tree.add(f.x, pull_back(f.y)[0])  # line 5
        value = lambda x: problem.f(x, repeat(x), batch)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)  # line 6
        return ExplicitState(x, y, inner_memory, outer_memory), Info(f.value, hypergradient, gradient, {})


def itd(
    problem: Problem,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    *,
    inner_steps: int = 1,
    truncate: int | None = None,
    checkpoint_every: int = 1,
) -> ITD:
    """One warm-started step on y, differentiated through, and one on x:

        ŷ_k     = y_k⁰ − α ∇_y g(x_k, y_k⁰)                                    y_k⁰ = ŷ_{k−1}
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − α ∇²_xy g(x_k, y_k⁰) ∇_y f(x_k, ŷ_k))

    With another inner rule ŷ_k = U(∇_y g), −α∇_y f becomes (∂U/∂∇_y g)ᵀ∇_y f: the derivative goes through
    the rule's update of this step, its memory of earlier steps (and the value of g, if it asks for that) held fixed.
    With N inner steps it goes through
    all of them, y_k⁰ and the memory at the start held fixed; with `truncate` = T through the last T of them
    (Shaban et al., "Truncated back-propagation for bilevel optimization", AISTATS 2019):

        x_{k+1} = x_k − β (∇_x f − α Σ_{t=N−T}^{N−1} ∇²_xy g(x_k, y_k^t) p_t)
            p_t = (I − α∇²_yy g(x_k, y_k^{t+1})) p_{t+1},   p_{N−1} = ∇_y f(x_k, y_k^N)

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of steps on y per step on x, all on the same batch.
        truncate: T, how many of them to differentiate; all of them if left out.
        checkpoint_every: keep every so many of the inner iterates and recompute the rest on the way back. With
            about √T the memory grows like √T instead of T, for one more inner gradient per step.
    """
    return ITD(
        check_problem(problem),
        as_rule(inner, "inner"),
        as_rule(outer, "outer"),
        lengths(inner_steps, truncate, checkpoint_every),
    )
