"""Iterative differentiation: Algorithm 2 of the paper, and its relatives with several inner steps."""

from typing import ClassVar

from optax import tree

from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, ExplicitState, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, check_batches, factory, field
from bilevel.solvers.parts.unroll import Lengths, inner_field, lengths, state_gradient, unroll
from bilevel.types import StepSize


class ITD(ExplicitSolver):
    lengths: Lengths = field(static=True)
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "ITD"
    traits: ClassVar[Traits] = Traits(
        supports_prox=True, differentiates_rule=True, uses_hessian=True, unrolled=True, outer_last_only=True
    )

    def step(self, state: ExplicitState, batch: Batch | Draws | None = None) -> tuple[ExplicitState, Info]:
        x, problem = state.x, self.problem
        field = inner_field(problem)
        loop = unroll(field, self.inner, self.lengths, x, state.y, state.inner, batch)  # line 4
        y, inner_memory, gradient, pull_back, repeat, last, model = loop
        f = problem.oracles.outer_gradients(x, y, last)
        through_y, _ = pull_back(f.y, state_gradient(problem, x, y, last, model))
        hypergradient = tree.add(f.x, through_y)  # line 5
        value = lambda x: problem.f(x, *repeat(x))
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)  # line 6
        state = ExplicitState(x, y, inner_memory, outer_memory)
        return state, Info(f.value, hypergradient, gradient, {}, model)


@factory()
def itd(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    inner_steps: int = 1,
    truncate: int | None = None,
    checkpoint_every: int = 1,
    batches: str = "independent",
) -> ITD:
    """Take one warm-started step on y, differentiate through it, and take one step on x:

        ŷ_k     = y_k⁰ − α ∇_y g(x_k, y_k⁰)                                    y_k⁰ = ŷ_{k−1}
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − α ∇²_xy g(x_k, y_k⁰) ∇_y f(x_k, ŷ_k))

    With another inner rule ŷ_k = U(∇_y g), −α∇_y f becomes (∂U/∂∇_y g)ᵀ∇_y f. The derivative goes through the rule's
    update of this step. The rule's memory of earlier steps, and the value of g if the rule asks for it, are constants.
    With N inner steps the derivative goes through all of them, and y_k⁰ and the memory at the start are constants. With
    `truncate` = T it goes through the last T of them (Shaban et al., "Truncated back-propagation for bilevel
    optimization", AISTATS 2019):

        x_{k+1} = x_k − β (∇_x f − α Σ_{t=N−T}^{N−1} ∇²_xy g(x_k, y_k^t) p_t)
            p_t = (I − α∇²_yy g(x_k, y_k^{t+1})) p_{t+1},   p_{N−1} = ∇_y f(x_k, y_k^N)

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of steps on y per step on x.
        truncate: T, how many of them to differentiate; the default is all.
        checkpoint_every: the distance between stored inner iterates; the others are computed again on the way back.
            With about √T the memory grows like √T instead of T, for one more inner gradient per inner step.
        batches: "independent", a draw with its own key for every inner step, as in ordinary training; the last one
            serves f too. Or "shared", one draw of each level per step.
    """
    return ITD(problem, inner, outer, lengths(inner_steps, truncate, checkpoint_every), batches)
