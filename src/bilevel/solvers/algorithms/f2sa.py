"""F2SA, with first derivatives only, in one loop, and F3SA, with momentum for noisy batches (Kwon et al. 2023)."""

from functools import partial
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import first
from bilevel.oracles import Oracles
from bilevel.solvers.kit import Batch, Draws, Info, Problem, Traits, descend, draws
from bilevel.solvers.options import Rule, check_batches, check_weight, count, factory, field
from bilevel.solvers.parts.estimates import recursive
from bilevel.solvers.parts.inner import seen_by
from bilevel.solvers.parts.lagrangian import tilted
from bilevel.solvers.parts.penalty import Penalized, PenaltyState, estimate, mixture, penalized
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Number, PyTree, Scalar, Schedule, StepSize


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


class Points(NamedTuple):
    x: PyTree
    y: PyTree
    z: PyTree


class Lower(NamedTuple):
    """Gradients that move y and z."""

    g_z: PyTree  # ∇_y g(x, z)
    g_y: PyTree  # ∇_y g(x, y)
    f_y: PyTree  # ∇_y f(x, y)

    def at_y(self, penalty: Array) -> PyTree:
        return tree.add(self.g_y, scaled(1 / penalty, self.f_y))


class Upper(NamedTuple):
    """Gradients that move x."""

    f: PyTree  # ∇_x f(x, y)
    g_y: PyTree  # ∇_x g(x, y)
    g_z: PyTree  # ∇_x g(x, z)

    def hypergradient(self, penalty: Array) -> PyTree:
        return tree.add(self.f, scaled(penalty, tree.sub(self.g_y, self.g_z)))


class F3SAState(NamedTuple):
    x: PyTree
    y: PyTree  # tracks y_λ(x), the minimizer of f + λg
    z: PyTree  # tracks y*(x), the minimizer of g
    before: Points  # (x_{k−1}, y_{k−1}, z_{k−1})
    lower: Lower  # the estimates of the last step
    upper: Upper
    inner: tuple[PyTree, PyTree]  # memories of the inner rule, of y and of z
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]


class F3SA(Penalized):
    momentum: Number = field(converter=partial(check_weight, name="momentum", of="the new gradient"))
    name: ClassVar[str] = "F3SA"

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> F3SAState:
        x, y = self.prepare(x0, y0, batch)
        point, oracles = Points(x, y, y), self.problem.oracles
        lower, (_, upper) = _lower(oracles, point, batch), _upper(oracles, point, batch)
        memories = self.inner.init(y), self.inner.init(y)
        return F3SAState(x, y, y, point, lower, upper, memories, self.outer.init(x), jnp.int32(0))

    def step(self, state: F3SAState, batch: Batch | None = None) -> tuple[F3SAState, Info]:
        x, problem, oracles, penalty = state.x, self.problem, self.problem.oracles, self.penalty(state.k)

        renew = lambda estimate, now, before: recursive(estimate, now, before, self.momentum)
        here = Points(x, state.y, state.z)
        now, then = _lower(oracles, here, batch), _lower(oracles, state.before, batch)
        lower, batch_gradient = renew(state.lower, now, then), now.g_z
        for_y, for_z = mixture(problem, x, penalty, batch), lambda z: problem.g(x, z, batch)
        for_y = tilted(for_y, state.y, now.at_y(penalty), lower.at_y(penalty))
        for_z = tilted(for_z, state.z, now.g_z, lower.g_z)
        y, y_memory = descend(self.inner, lower.at_y(penalty), state.inner[0], state.y, for_y)
        z, z_memory = descend(self.inner, lower.g_z, state.inner[1], state.z, for_z)

        value, now = _upper(oracles, Points(x, y, z), batch)
        _, then = _upper(oracles, Points(state.before.x, state.y, state.z), batch)
        upper = renew(state.upper, now, then)
        hypergradient = upper.hypergradient(penalty)
        price = penalized(problem, y, z, penalty, batch, batch)
        price = tilted(price, x, now.hypergradient(penalty), hypergradient)
        for_x = lambda x: scaled(1 / penalty, price(x))
        x, outer_memory = descend(self.outer, scaled(1 / penalty, hypergradient), state.outer, x, for_x)

        state = F3SAState(x, y, z, here, lower, upper, (y_memory, z_memory), outer_memory, state.k + 1)
        return state, Info(value, hypergradient, batch_gradient, {"penalty": penalty.astype(value.dtype)})

    def warm_up(self, state: F3SAState, batch: Batch | Draws | None = None) -> F3SAState:
        x, problem, oracles, penalty = state.x, self.problem, self.problem.oracles, self.penalty(state.k)
        batch = first(batch)
        now = _lower(oracles, Points(x, state.y, state.z), batch)
        for_y, for_z = mixture(problem, x, penalty, batch), lambda z: problem.g(x, z, batch)
        y, y_memory = descend(self.inner, now.at_y(penalty), state.inner[0], state.y, for_y)
        z, z_memory = descend(self.inner, now.g_z, state.inner[1], state.z, for_z)
        here = Points(x, y, z)  # the estimates restart where the warm-up ends
        lower, (_, upper) = _lower(oracles, here, batch), _upper(oracles, here, batch)
        return state._replace(y=y, z=z, before=here, lower=lower, upper=upper, inner=(y_memory, z_memory))


@factory()
def f3sa(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    penalty: Number | Schedule,
    momentum: Number = 0.1,
) -> F3SA:
    """Run `bl.f2sa` and replace every gradient ∇(w; batch) by a recursive estimate:

        e_k = ∇(w_k; B_k) + (1 − η)(e_{k−1} − ∇(w_{k−1}; B_k))

    where w is (x_k, z_k) for z, (x_k, y_k) for y, and (x_k, y_{k+1}), (x_k, z_{k+1}) for x, and B_k the batch. Each
    gradient is evaluated at this and at the last point on the same batch, so that the errors of successive steps
    cancel. On full batches it is F2SA. J. Kwon, D. Kwon, S. Wright, R. Nowak, "A fully first-order method for
    stochastic bilevel optimization", ICML 2023. Differences: η is constant here and decreases there. All gradients of a
    step share the batch B_k; there each has its own. As in `f2sa`, λ must make f + λg strongly convex in y.

    Args:
        problem: the two objectives.
        inner: γ as a float, or any optax transformation; each copy has its own memory.
        outer: β as a float, or any optax transformation of the direction divided by λ_k.
        penalty: λ as a float, or a function k ↦ λ_k such as an optax schedule.
        momentum: η, between 0 and 1: the weight of the new gradient; 1 is F2SA.
    """
    return F3SA(problem, inner, outer, penalty, momentum)


def _lower(oracles: Oracles, at: Points, batch: Batch | None) -> Lower:
    g_z, g_y = (oracles.inner_gradient(at.x, copy, batch) for copy in (at.z, at.y))
    return Lower(g_z, g_y, oracles.outer_gradients(at.x, at.y, batch).y)


def _upper(oracles: Oracles, at: Points, batch: Batch | None) -> tuple[Scalar, Upper]:
    f = oracles.outer_gradients(at.x, at.y, batch)
    g_y, g_z = (oracles.inner_gradients(at.x, copy, batch).x for copy in (at.y, at.z))
    return f.value, Upper(f.x, g_y, g_z)
