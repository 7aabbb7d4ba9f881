"""Iterative differentiation: Algorithm 2 of the paper, and its relatives with several inner steps."""

from typing import ClassVar

import equinox as eqx
from optax import tree

from bilevel.batch import Batch, Draws
from bilevel.checks import check_problem, prepare
from bilevel.problem import Problem
from bilevel.solvers.base import ExplicitState, Info, Solver, check_batches
from bilevel.solvers.parts.unroll import Lengths, inner_field, lengths, state_gradient, unroll
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.solvers.traits import Traits
from bilevel.types import PyTree, StepSize


class ITD(Solver):
    inner: Rule
    outer: Rule
    lengths: Lengths = eqx.field(static=True)
    batches: str = eqx.field(static=True, default="independent")
    name: ClassVar[str] = "ITD"
    traits: ClassVar[Traits] = Traits(
        supports_prox=True, differentiates_rule=True, uses_hessian=True, unrolled=True, outer_last_only=True
    )

    @property
    def draws(self) -> int:
        return 1 if self.batches == "shared" else self.lengths.steps

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> ExplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        return ExplicitState(x, y, self.inner.init(y), self.outer.init(x))

    def step(self, state: ExplicitState, batch: Batch | Draws | None = None) -> tuple[ExplicitState, Info]:
        x, problem = state.x, self.problem
        y, inner_memory, gradient, pull_back, repeat, last, model = unroll(
            inner_field(problem), self.inner, self.lengths, x, state.y, state.inner, batch
        )  # line 4
        f = problem.oracles.outer_gradients(x, y, last)
        through_y, _ = pull_back(f.y, state_gradient(problem, x, y, last, model))
        hypergradient = tree.add(f.x, through_y)  # line 5
        value = lambda x: problem.f(x, *repeat(x))
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)  # line 6
        state = ExplicitState(x, y, inner_memory, outer_memory)
        return state, Info(f.value, hypergradient, gradient, {}, model)


def itd(
    problem: Problem,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    *,
    inner_steps: int = 1,
    truncate: int | None = None,
    checkpoint_every: int = 1,
    batches: str = "independent",
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
        inner_steps: N, the number of steps on y per step on x.
        truncate: T, how many of them to differentiate; all of them if left out.
        checkpoint_every: keep every so many of the inner iterates and recompute the rest on the way back. With
            about √T the memory grows like √T instead of T, for one more inner gradient per step.
        batches: "independent", a draw with a key of its own for every inner step, the last of which serves f too: the
            steps of ordinary training. Or "shared", one draw of each level for all of the step.
    """
    return ITD(
        check_problem(problem),
        as_rule(inner, "inner"),
        as_rule(outer, "outer"),
        lengths(inner_steps, truncate, checkpoint_every),
        check_batches(batches),
    )
