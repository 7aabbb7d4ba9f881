"""F²BA, the penalty method on two time scales of near-optimal first-order complexity, and its accelerated variant."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Int
from optax import tree

from bilevel.checks import as_number, check_positive
from bilevel.solvers.kit import Batch, Draws, Info, Problem, descend, draws
from bilevel.solvers.options import Rule, check_batches, count, factory, field, positive
from bilevel.solvers.parts.inner import seen_by
from bilevel.solvers.parts.penalty import Penalized, PenaltyState, estimate, penalized
from bilevel.solvers.parts.trees import scaled, select
from bilevel.types import Number, PyTree, Scalar, Schedule, StepSize
from bilevel.words import shown


class F2BA(Penalized):
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "F2BA"

    def step(self, state: PenaltyState, batch: Batch | Draws | None = None) -> tuple[PenaltyState, Info]:
        x, problem, penalty = state.x, self.problem, self.penalty(state.k)
        (y, z, *memories), gradient, model = self.track(state, penalty, self.inner_steps, batch)

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


class AccF2BAState(NamedTuple):
    x: PyTree  # the point of the next gradient, ahead of the last point
    last: PyTree  # the last point after a step on x
    y: PyTree  # tracks y_λ(x), the minimizer of f + λg
    z: PyTree  # tracks y*(x), the minimizer of g
    inner: tuple[PyTree, PyTree]  # memories of the inner rule, of y and of z
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]
    since: Int[Array, ""]  # steps since the last restart
    moved: Scalar  # the sum of their squared lengths


class AccF2BA(Penalized):
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    lookahead: Number
    radius: Number = field(converter=positive("radius"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "AccF2BA"

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> AccF2BAState:
        x, y, z, memories, outer_memory, k = super().init(x0, y0, batch)
        return AccF2BAState(x, x, y, z, memories, outer_memory, k, k, tree.norm(tree.zeros_like(x)))

    def step(self, state: AccF2BAState, batch: Batch | Draws | None = None) -> tuple[AccF2BAState, Info]:
        x, problem, penalty = state.x, self.problem, self.penalty(state.k)
        (y, z, *memories), gradient, model = self.track(state, penalty, self.inner_steps, batch)

        last = seen_by(model, draws(batch)[self.draws - 1])
        f, hypergradient = estimate(problem, x, y, z, penalty, last, last)
        value = penalized(problem, y, z, penalty, last, last)
        point, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        taken = tree.sub(point, state.last)
        since, moved = state.since + 1, state.moved + tree.norm(taken, squared=True)
        far = since.astype(moved.dtype) * moved > jnp.asarray(self.radius, moved.dtype) ** 2

        x = select(far, point, tree.add(point, scaled(self.lookahead, taken)))
        since, moved = jnp.where(far, 0, since), jnp.where(far, 0, moved)
        state = AccF2BAState(x, point, y, z, tuple(memories), outer_memory, state.k + 1, since, moved)
        metrics = {"penalty": penalty.astype(f.dtype), "restarted": far}
        return state, Info(f, hypergradient, gradient, metrics, model)


@factory(momentum="lookahead")
def acc_f2ba(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    penalty: Number | Schedule,
    radius: Number,
    lookahead: Number = 0.9,
    inner_steps: int = 10,
    batches: str = "independent",
) -> AccF2BA:
    """Run `bl.solvers.f2ba` with momentum on x, and drop the momentum when x has moved too far since it began:

        y, z    ← as in F²BA at x_k, K steps
        a_{k+1} = x_k − η (∇_x f(x_k, y) + λ (∇_x g(x_k, y) − ∇_x g(x_k, z)))
        x_{k+1} = a_{k+1} + θ (a_{k+1} − a_k),   or a_{k+1} itself if n Σ ‖a_{i+1} − a_i‖² > B²

    where the sum is over the n steps since the momentum was last dropped. `state.x` is the x_k at which gradients are
    taken, `state.last` the a_k. The limit is F²BA's. L. Chen, Y. Ma, J. Zhang, "Near-optimal nonconvex-strongly-convex
    bilevel optimization with fully first-order oracles", JMLR 2025, with the restarts of H. Li, Z. Lin, "Restarted
    nonconvex accelerated gradient descent", ICML 2022. The momentum equals the authors' code (PyTorch's Nesterov SGD)
    step for step. Differences: their code sums ‖x_{i+1} − x_i‖², continues from the x_{k+1} ahead when it drops the
    momentum, and shrinks B by 1 % each time, down to a minimum. Its y and z may take accelerated steps too: for these
    pass `optax.sgd(α, momentum=..., nesterov=True)` as `inner`.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation; each copy has its own memory.
        outer: η as a float, or any optax transformation.
        penalty: λ as a float, or a function k ↦ λ_k such as an optax schedule.
        radius: B, in the units of x: the distance beyond which the momentum is dropped.
        lookahead: θ, the share of the last step that x moves ahead.
        inner_steps: K, the number of steps on y and z per step on x.
        batches: "independent", a draw for every step on y and z; the last one moves x too, where its noise mostly
            cancels between y and z. Or "shared", one draw per step.
    """
    check_positive(lookahead, "lookahead")
    if not isinstance(lookahead, Tracer) and as_number(lookahead) >= 1:  # pyright: ignore[reportOptionalOperand]
        raise ValueError(f"lookahead must be below 1, not {shown(lookahead)}: pass e.g. 0.9")
    return AccF2BA(problem, inner, outer, penalty, inner_steps, lookahead, radius, batches)
