"""PBGD: gradient descent on x and y together, under a price on y's distance from optimal.

V-PBGD charges for the value g(x, y) − min_z g(x, z), G-PBGD for the squared gradient ½‖∇_y g(x, y)‖².
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import first
from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, check_batches, count, factory, field, rule_of
from bilevel.solvers.parts.inner import inner_loop
from bilevel.solvers.parts.penalty import Penalized, Penalty, as_penalty, mixture, penalized
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Number, PyTree, Schedule, StepSize


class VPBGDState(NamedTuple):
    x: PyTree
    y: PyTree
    z: PyTree  # tracks y*(x), the minimizer of g
    inner: PyTree  # memory of the inner rule
    auxiliary: PyTree  # memory of the auxiliary rule, which moves z
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]


class GPBGDState(NamedTuple):
    x: PyTree
    y: PyTree
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]


class VPBGD(Penalized):
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    auxiliary: Rule = field(converter=rule_of("auxiliary"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "V-PBGD"
    traits: ClassVar[Traits] = Traits(
        first_order=True, penalized=True, inner_rule="minimum", outer_at="start", outer_last_only=True
    )

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> VPBGDState:
        x, y = self.prepare(x0, y0, batch)
        memories = self.inner.init(y), self.auxiliary.init(y), self.outer.init(x)
        return VPBGDState(x, y, y, *memories, jnp.int32(0))

    def step(self, state: VPBGDState, batch: Batch | Draws | None = None) -> tuple[VPBGDState, Info]:
        x, y, problem, penalty = state.x, state.y, self.problem, self.penalty(state.k)
        z, auxiliary_memory, gradient, batch, model = inner_loop(
            problem, self.auxiliary, self.inner_steps, x, state.z, state.auxiliary, batch
        )

        f, g = problem.oracles.outer_gradients(x, y, batch), problem.oracles.inner_gradients(x, y, batch)
        gap = tree.sub(g.x, problem.oracles.inner_gradients(x, z, batch).x)
        hypergradient = tree.add(f.x, scaled(penalty, gap))
        price = penalized(problem, y, z, penalty, batch, batch)
        for_x = lambda x: scaled(1 / penalty, price(x))
        x, outer_memory = descend(self.outer, scaled(1 / penalty, hypergradient), state.outer, x, for_x)
        direction, for_y = tree.add(g.y, scaled(1 / penalty, f.y)), mixture(problem, state.x, penalty, batch)
        y, inner_memory = descend(self.inner, direction, state.inner, y, for_y)
        state = VPBGDState(x, y, z, inner_memory, auxiliary_memory, outer_memory, state.k + 1)
        metrics = {"penalty": penalty.astype(f.value.dtype)}
        return state, Info(f.value, hypergradient, gradient, metrics, model)

    def warm_up(self, state: VPBGDState, batch: Batch | Draws | None = None) -> VPBGDState:
        loop = inner_loop(self.problem, self.auxiliary, 1, state.x, state.z, state.auxiliary, first(batch))
        return state._replace(y=loop.y, z=loop.y, auxiliary=loop.memory)


class GPBGD(ExplicitSolver):
    penalty: Penalty = field(converter=as_penalty)
    name: ClassVar[str] = "G-PBGD"
    traits: ClassVar[Traits] = Traits(penalized=True, inner_rule="minimum", outer_at="start")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> GPBGDState:
        x, y = self.prepare(x0, y0, batch)
        return GPBGDState(x, y, self.inner.init(y), self.outer.init(x), jnp.int32(0))

    def step(self, state: GPBGDState, batch: Batch | None = None) -> tuple[GPBGDState, Info]:
        x, y, problem, penalty = state.x, state.y, self.problem, self.penalty(state.k)
        oracles = problem.oracles
        f, gradient = oracles.outer_gradients(x, y, batch), oracles.inner_gradient(x, y, batch)
        g = oracles.along(x, y, gradient, batch)

        def price(x: PyTree, y: PyTree):
            gradient = oracles.inner_gradient(x, y, batch)
            return scaled(1 / penalty, problem.f(x, y, batch)) + tree.norm(gradient, squared=True) / 2

        hypergradient = tree.add(f.x, scaled(penalty, g.cross))
        direction = tree.add(g.hessian, scaled(1 / penalty, f.y))
        for_x, for_y = (lambda x: price(x, state.y)), (lambda y: price(state.x, y))
        x, outer_memory = descend(self.outer, scaled(1 / penalty, hypergradient), state.outer, x, for_x)
        y, inner_memory = descend(self.inner, direction, state.inner, y, for_y)
        state = GPBGDState(x, y, inner_memory, outer_memory, state.k + 1)
        return state, Info(f.value, hypergradient, gradient, {"penalty": penalty.astype(f.value.dtype)})


@factory()
def v_pbgd(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    penalty: Number | Schedule,
    inner_steps: int = 1,
    auxiliary: StepSize | Rule | None = None,
    batches: str = "independent",
) -> VPBGD:
    """Descend f(x, y) + λ (g(x, y) − min_z g(x, z)) in x and y at once (T times the first line):

        z       ← z − η ∇_y g(x_k, z)
        x_{k+1} = x_k − (β/λ_k) (∇_x f(x_k, y_k) + λ_k (∇_x g(x_k, y_k) − ∇_x g(x_k, z)))
        y_{k+1} = y_k − (α/λ_k) (∇_y f(x_k, y_k) + λ_k ∇_y g(x_k, y_k))

    The limit is the same as in `bl.f2sa`, off by O(1/λ), and f + λg must be strongly convex in y as there. In F2SA y
    moves before x, and as often as z. H. Shen, T. Chen, "On penalty-based bilevel gradient descent method", ICML 2023,
    Algorithm 1, for any g whose gradient in y bounds the distance from its minimizers (Polyak–Łojasiewicz), with one
    step size α/λ = β/λ for x and y. For sets of x use `bl.projected`; sets of y are not supported. It agrees with the
    authors' code step for step where λ ≥ 1: z continues from its last value, the steps on x and y shrink with 1/λ, and
    λ may grow. (Their schedule, `optax.linear_schedule(0.0, 0.2, 30_000)`, begins with λ = 0, and they do not divide by
    a λ below 1. Here λ must be positive.)

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation of the direction divided by λ_k, for y.
        outer: β as a float, or any optax transformation of the direction divided by λ_k.
        penalty: λ as a float, or a function k ↦ λ_k such as an optax schedule.
        inner_steps: T, the number of steps on z per step on x and y.
        auxiliary: η as a float, or any optax transformation, for z; the default is `inner`.
        batches: "independent", a draw for every step on z, the last of which moves x and y; or "shared", one for all.
    """
    auxiliary = inner if auxiliary is None else auxiliary
    return VPBGD(problem, inner, outer, penalty, inner_steps, auxiliary, batches)


@factory()
def g_pbgd(
    problem: Problem, *, inner: StepSize | Rule, outer: StepSize | Rule, penalty: Number | Schedule
) -> GPBGD:
    """Descend f(x, y) + (λ/2) ‖∇_y g(x, y)‖² in x and y at once:

        x_{k+1} = x_k − (β/λ_k) (∇_x f(x_k, y_k) + λ_k ∇²_xy g(x_k, y_k) ∇_y g(x_k, y_k))
        y_{k+1} = y_k − (α/λ_k) (∇_y f(x_k, y_k) + λ_k ∇²_yy g(x_k, y_k) ∇_y g(x_k, y_k))

    At the limit −λ∇_y g = (∇²_yy g)⁻¹∇_y f takes the place of an adjoint, so the first line is AID's hypergradient at a
    y that is off by O(1/λ). There are no other variables, but ∇²_yy g enters squared: α must be below 2/L² for a large
    λ, and y moves at the pace of μ². H. Shen, T. Chen, "On penalty-based bilevel gradient descent method", ICML 2023,
    with one step size for x and y. As in the authors' code there are two here, and the steps shrink with 1/λ.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation of the direction divided by λ_k, for y.
        outer: β as a float, or any optax transformation of the direction divided by λ_k.
        penalty: λ as a float, or a function k ↦ λ_k such as an optax schedule.
    """
    return GPBGD(problem, inner, outer, penalty)
