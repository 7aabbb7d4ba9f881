"""F2SA: bilevel optimization with first derivatives only, in one loop."""

from typing import ClassVar

from bilevel.solvers.kit import Batch, Draws, Info, Problem, Traits, descend, draws
from bilevel.solvers.options import Rule, check_batches, count, factory, field
from bilevel.solvers.parts.inner import seen_by
from bilevel.solvers.parts.penalty import Penalized, PenaltyState, estimate, penalized
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Number, Schedule, StepSize


class F2SA(Penalized):
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "F2SA"
    # The last draw but one is where x uses f.
    traits: ClassVar[Traits] = Traits(first_order=True, penalized=True, inner_rule="minimum", outer_draw=-2)

    @property
    def independent_draws(self) -> int:
        return 2 * self.inner_steps + 2

    def step(self, state: PenaltyState, batch: Batch | Draws | None = None) -> tuple[PenaltyState, Info]:
        x, problem, penalty = state.x, self.problem, self.penalty(state.k)
        apart, T = self.batches == "independent", self.inner_steps
        (y, z, *memories), gradient, model = self.track(state, penalty, T, batch, apart)

        at_y, at_z = (seen_by(model, draws(batch)[2 * T + i]) for i in range(2))
        f, hypergradient = estimate(problem, x, y, z, penalty, at_y, at_z)
        value = lambda x: scaled(1 / penalty, penalized(problem, y, z, penalty, at_y, at_z)(x))
        x, outer_memory = descend(self.outer, scaled(1 / penalty, hypergradient), state.outer, x, value)
        state = PenaltyState(x, y, z, tuple(memories), outer_memory, state.k + 1)
        return state, Info(f, hypergradient, gradient, {"penalty": penalty.astype(f.dtype)}, model)


@factory()
def f2sa(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    penalty: Number | Schedule,
    inner_steps: int = 1,
    batches: str = "independent",
) -> F2SA:
    """Use two copies of the inner variable instead of second derivatives (T times the first two lines):

        z_{k+1} = z_k − γ ∇_y g(x_k, z_k)
        y_{k+1} = y_k − (γ/λ_k) (∇_y f(x_k, y_k) + λ_k ∇_y g(x_k, y_k))
        x_{k+1} = x_k − (β/λ_k) (∇_x f(x_k, y_{k+1}) + λ_k (∇_x g(x_k, y_{k+1}) − ∇_x g(x_k, z_{k+1})))

    With a constant penalty λ the limit is off by O(1/λ). With one that grows without bound it is a stationary point of
    Φ. J. Kwon, D. Kwon, S. Wright, R. Nowak, "A fully first-order method for stochastic bilevel optimization", ICML
    2023, Algorithm 1, where α_k = γ/λ_k, β = ξγ, and λ_{k+1} = λ_k + δ_k: pass the λ_k themselves as a function of k.
    Its λ_0 is at least 2ℓ/μ, with ℓ the smoothness of f. Below that f + λg may not be convex in y, and y diverges. The
    status of such a run reports it, with the penalty that is needed.

    As published, every gradient has its own data: a step draws 2T + 2 batches, one for each step on z, one for each on
    y, and for x one at y and one at z. f and g at the same y use the same draw, and its two levels are independent.

    Args:
        problem: the two objectives.
        inner: γ as a float, or any optax transformation; each copy has its own memory.
        outer: β as a float, or any optax transformation of the direction divided by λ_k.
        penalty: λ as a float, or a function k ↦ λ_k such as an optax schedule.
        inner_steps: T, the number of steps on y and z per step on x.
        batches: "independent", the 2T + 2 draws; or "shared", one draw of each level per step.
    """
    return F2SA(problem, inner, outer, penalty, inner_steps, batches)
