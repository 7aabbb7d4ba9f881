"""F²BA: the penalty method on two time scales, of near-optimal first-order complexity."""

from typing import ClassVar

from bilevel.solvers.kit import Batch, Draws, Info, Problem, descend, draws
from bilevel.solvers.options import Rule, check_batches, count, factory, field
from bilevel.solvers.parts.inner import seen_by
from bilevel.solvers.parts.penalty import Copies, Penalized, PenaltyState, estimate, penalized, track
from bilevel.types import Number, Schedule, StepSize


class F2BA(Penalized):
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "F2BA"

    def step(self, state: PenaltyState, batch: Batch | Draws | None = None) -> tuple[PenaltyState, Info]:
        x, problem, penalty = state.x, self.problem, self.penalty(state.k)
        copies = Copies(state.y, state.z, *state.inner)
        (y, z, *memories), gradient, model = track(
            problem, self.inner, self.inner_steps, x, copies, penalty, batch
        )

        last = seen_by(model, draws(batch)[self.draws - 1])
        f, hypergradient = estimate(problem, x, y, z, penalty, last, last)
        value = penalized(problem, y, z, penalty, last, last)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        state = PenaltyState(x, y, z, tuple(memories), outer_memory, state.k + 1)
        return state, Info(f, hypergradient, gradient, {"penalty": penalty.astype(f.dtype)}, model)


@factory()
def f2ba(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    penalty: Number | Schedule,
    inner_steps: int = 10,
    batches: str = "independent",
) -> F2BA:
    """Descend L_λ, with its gradient from warm-started inner loops (K times the first two lines):

        z ← z − α ∇_y g(x_k, z)
        y ← y − (α/λ) (∇_y f(x_k, y) + λ ∇_y g(x_k, y))
        x_{k+1} = x_k − η (∇_x f(x_k, y) + λ (∇_x g(x_k, y) − ∇_x g(x_k, z)))

    With a constant penalty the limit is off by O(1/λ). Unlike in `bl.f2sa` the step on x does not shrink with λ,
    because L_λ is as smooth as Φ for every λ that makes f + λg strongly convex in y (as in `f2sa`, λ must be above ℓ/μ
    where f curves downwards by ℓ). L. Chen, Y. Ma, J. Zhang, "Near-optimal nonconvex-strongly-convex bilevel
    optimization with fully first-order oracles", JMLR 2025, take K = O(κ log(λκ)) and a constant λ of the order of
    κ³/ε. The step on y is there a separate τ, here α/λ. z is warm-started like y, as in the publication. The authors'
    code sets it to y at the beginning of every outer step, and takes ∇_y g at z for both copies.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation; each copy has its own memory.
        outer: η as a float, or any optax transformation.
        penalty: λ as a float, or a function k ↦ λ_k such as an optax schedule.
        inner_steps: K, the number of steps on y and z per step on x.
        batches: "independent", a draw for every step on y and z; the last one moves x too, where its noise mostly
            cancels between y and z. Or "shared", one draw per step.
    """
    return F2BA(problem, inner, outer, penalty, inner_steps, batches)
