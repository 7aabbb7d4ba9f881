"""Recursive momentum (STORM) on y and on the hypergradient: MRBO (Yang, Ji & Liang 2021), SUSTAIN (Khanduri et al.)."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.checks import check_schedule, check_seed
from bilevel.identity import Static
from bilevel.oracles import Oracles
from bilevel.solvers.kit import Batch, Draws, Info, Problem, Rule, Solver, Traits, descend, draws
from bilevel.solvers.options import check_batches, check_weight, count, factory, field, positive, rule_of
from bilevel.solvers.parts.estimates import at_both, leaning, recursive
from bilevel.solvers.parts.lagrangian import lagrangian
from bilevel.solvers.parts.penalty import Penalty
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Metrics, Number, PyTree, Scalar, Schedule, StepSize


class Pair(NamedTuple):
    """Point, or a direction for each of its parts."""

    x: PyTree
    y: PyTree


class RecursiveState(NamedTuple):
    x: PyTree
    y: PyTree
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule
    before: Pair  # (x_{k−1}, y_{k−1})
    directions: Pair  # the estimates of the last step
    k: Int[Array, ""]


class Estimate(NamedTuple):
    value: Scalar  # f
    directions: Pair  # ∇̂Φ and ∇_y g
    v: PyTree  # the adjoint behind ∇̂Φ


Invert = Callable[[Pair, PyTree], PyTree]  # (point, ∇_y f) ↦ an estimate of (∇²_yy g)⁻¹ ∇_y f


Drawn = Callable[[Any], Batch | None]  # from a draw's number, possibly traced


def estimate(oracles: Oracles, at: Pair, invert: Invert, S: Batch | None, D: Batch | None) -> Estimate:
    """Return ∇_y g(x, y; S), and ∇̂Φ = ∇_x f(x, y; D) − ∇²_xy g(x, y; D) v."""
    f = oracles.outer_gradients(at.x, at.y, D)
    v = invert(at, f.y)
    hypergradient = tree.sub(f.x, oracles.curvature(at.x, at.y, D).cross(v))
    return Estimate(f.value, Pair(hypergradient, oracles.inner_gradient(at.x, at.y, S)), v)


def as_momentum(momentum: Number | Schedule | Penalty) -> Penalty:
    """Return the weight of the new gradient, from a number between 0 and 1 or a function of the step number."""
    if isinstance(momentum, Penalty):
        return momentum
    if callable(momentum):
        weight = lambda value: check_weight(value, "momentum at step 0", "the new gradient")
        return Penalty(schedule=Static(check_schedule(momentum, jnp.int32(0), weight, "momentum")))
    return Penalty(check_weight(momentum, "momentum", "the new gradient"))


class DoubleMomentum(Solver):
    inner: Rule = field(converter=rule_of("inner"))
    adjoint: Number = field(converter=positive("adjoint step size"))
    outer: Rule = field(converter=rule_of("outer"))
    momentum: Penalty = field(converter=as_momentum)
    products: int = field(static=True, converter=count("products"))
    batches: str = field(static=True, converter=check_batches)
    traits: ClassVar[Traits] = Traits(
        truncated_series=True, inner_rule="plain", outer_at="start", extra_draws=1
    )

    @abstractmethod
    def inversion(self, drawn: Drawn, k: Int[Array, ""]) -> tuple[Invert, Metrics]:
        """Return a function that solves the adjoint system at step k on the draws 1, …, Q, and metrics."""

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> RecursiveState:
        x, y = self.prepare(x0, y0, batch)
        k, memories = jnp.int32(0), (self.inner.init(y), self.outer.init(x))
        return self._start_estimates(RecursiveState(x, y, *memories, Pair(x, y), Pair(x, y), k), batch)

    def step(self, state: RecursiveState, batch: Batch | Draws | None = None) -> tuple[RecursiveState, Info]:
        problem, drawn, here = self.problem, draws(batch), Pair(state.x, state.y)
        S, D = drawn[0], drawn[self.draws - 1]
        invert, metrics = self.inversion(drawn.__getitem__, state.k)
        now, then = at_both(lambda at: estimate(problem.oracles, at, invert, S, D), here, state.before)
        d = recursive(state.directions, now.directions, then.directions, self.momentum(state.k))

        for_y = leaning(lambda y: problem.g(here.x, y, S), here.y, d.y)
        for_x = leaning(lagrangian(problem, here.y, now.v, D), here.x, d.x)
        y, inner_memory = descend(self.inner, d.y, state.inner, here.y, for_y)
        x, outer_memory = descend(self.outer, d.x, state.outer, here.x, for_x)
        state = RecursiveState(x, y, inner_memory, outer_memory, here, d, state.k + 1)
        return state, Info(now.value, d.x, now.directions.y, metrics)

    def warm_up(self, state: RecursiveState, batch: Batch | Draws | None = None) -> RecursiveState:
        return self._start_estimates(super().warm_up(state, batch), batch)

    def _start_estimates(self, state: RecursiveState, batch: Batch | Draws | None) -> RecursiveState:
        """Return the state with the directions on this batch as its estimates."""
        drawn, here = draws(batch), Pair(state.x, state.y)
        invert, _ = self.inversion(drawn.__getitem__, state.k)
        now = estimate(self.problem.oracles, here, invert, drawn[0], drawn[self.draws - 1])
        return state._replace(before=here, directions=now.directions)


def series(problem: Problem, drawn: Drawn, eta: Number, terms: int) -> Invert:
    """Return η Σ_{i=0}^{Q} Π_{j<i} (I − η ∇²_yy g(x, y; B_j)) b, with Q = `terms` and B_j the draws 1, …, Q."""

    def invert(at: Pair, b: PyTree) -> PyTree:
        def add(carry, i):
            r, total = carry
            r = contracted(problem, at, eta, drawn(1 + i), r)
            return (r, tree.add(total, r)), None

        (_, total), _ = lax.scan(add, (b, b), jnp.arange(terms, dtype=jnp.int32))
        return scaled(eta, total)

    return invert


def contracted(problem: Problem, at: Pair, eta: Number, batch: Batch | None, r: PyTree) -> PyTree:
    return tree.sub(r, scaled(eta, problem.oracles.curvature(at.x, at.y, batch).hessian(r)))


class MRBO(DoubleMomentum):
    name: ClassVar[str] = "MRBO"

    def inversion(self, drawn: Drawn, k: Int[Array, ""]) -> tuple[Invert, Metrics]:
        return series(self.problem, drawn, self.adjoint, self.products), {}


@factory()
def mrbo(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: Number,
    outer: StepSize | Rule,
    products: int = 3,
    momentum: Number | Schedule = 0.1,
    batches: str = "independent",
) -> MRBO:
    """Estimate `bl.stocbio`'s hypergradient ∇̂Φ and the inner gradient recursively:

        u_k = ∇_y g(x_k, y_k; S_k) + (1 − θ_k)(u_{k−1} − ∇_y g(x_{k−1}, y_{k−1}; S_k))
        h_k = ∇̂Φ(x_k, y_k; B_k)   + (1 − θ_k)(h_{k−1} − ∇̂Φ(x_{k−1}, y_{k−1}; B_k))
        y_{k+1} = y_k − α u_k          x_{k+1} = x_k − β h_k
        ∇̂Φ(x, y; B) = ∇_x f − ∇²_xy g · η Σ_{i=0}^{Q} Π_{j<i} (I − η ∇²_yy g(·; B_j)) ∇_y f

    Both points of a difference use the same batches, which are read once. The truncated series leaves `stocbio`'s bias.
    J. Yang, K. Ji, Y. Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021, with α, β ∝ k^{−1/3}
    and θ_k ∝ k^{−2/3}: pass optax schedules. [benchmark_bilevel](https://github.com/benchopt/benchmark_bilevel) takes
    the cross product on S_k and starts with u = h = 0. Here it has its own draw, and the first step is stocBiO's.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, at most 1/L.
        outer: β as a float, or any optax transformation.
        products: Q, the number of Hessian products per point.
        momentum: θ between 0 and 1, the weight of the new gradient (1: no memory), or a function k ↦ θ_k.
        batches: "independent", Q + 2 draws per step; or "shared", one draw of each level for all terms.
    """
    return MRBO(problem, inner, adjoint, outer, momentum, products, batches)


class SUSTAIN(DoubleMomentum):
    seed: int = field(static=True)
    name: ClassVar[str] = "SUSTAIN"

    def inversion(self, drawn: Drawn, k: Int[Array, ""]) -> tuple[Invert, Metrics]:
        Q, eta = self.products, self.adjoint
        p = jax.random.randint(jax.random.fold_in(jax.random.key(self.seed), k), (), 0, Q)

        def invert(at: Pair, b: PyTree) -> PyTree:
            factor = lambda i, r: contracted(self.problem, at, eta, drawn(1 + i), r)
            return scaled(Q * eta, lax.fori_loop(0, p, factor, b))

        return invert, {"factors": p}


@factory()
def sustain(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: Number,
    outer: StepSize | Rule,
    products: int = 10,
    momentum: Number | Schedule = 0.1,
    batches: str = "independent",
    seed: int = 0,
) -> SUSTAIN:
    """Run the recurrence of `bl.solvers.mrbo` with the adjoint of Ghadimi & Wang in place of the series:

        v = Q η Π_{j<p} (I − η ∇²_yy g(·; B_j)) ∇_y f          p uniform in {0, …, Q − 1}

    Its mean over p is the series of Q terms. It takes half the products of `mrbo` on average, and has more noise.
    P. Khanduri, S. Zeng, M. Hong, H.-T. Wai, Z. Wang, Z. Yang, "A near-optimal algorithm for stochastic bilevel
    optimization via double-momentum", NeurIPS 2021, with α, β ∝ k^{−1/3} and θ_k ∝ k^{−2/3}: pass optax schedules. Here
    one θ serves both estimates. The trace's "factors" shows p.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, at most 1/L.
        outer: β as a float, or any optax transformation.
        products: Q; a point takes at most Q Hessian products.
        momentum: θ between 0 and 1, the weight of the new gradient (1: no memory), or a function k ↦ θ_k.
        batches: "independent", Q + 2 draws per step; or "shared", one draw of each level for all terms.
        seed: a whole number, from which p is drawn.
    """
    return SUSTAIN(problem, inner, adjoint, outer, momentum, products, batches, int(check_seed(seed)))
