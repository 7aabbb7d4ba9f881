"""VRBO: recursive estimates of both directions along a loop on y, from a full pass now and then (Yang et al. 2021)."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import first
from bilevel.solvers.algorithms.double_momentum import Drawn, Pair, estimate, series
from bilevel.solvers.kit import Batch, Draws, Info, Problem, Solver, Traits, descend, draws
from bilevel.solvers.options import Rule, check_batches, count, factory, field, positive, rule_of
from bilevel.solvers.parts.estimates import at_both, leaning, recursive
from bilevel.solvers.parts.inner import carried_state
from bilevel.solvers.parts.trees import select
from bilevel.solvers.parts.whole import whole
from bilevel.types import Number, PyTree, StepSize


class VRBOState(NamedTuple):
    x: PyTree
    y: PyTree
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule
    directions: Pair  # the estimates at (x, y)
    k: Int[Array, ""]


class VRBO(Solver):
    inner: Rule = field(converter=rule_of("inner"))
    adjoint: Number = field(converter=positive("adjoint step size"))
    outer: Rule = field(converter=rule_of("outer"))
    period: int = field(static=True, converter=count("period"))
    products: int = field(static=True, converter=count("products"))
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "VRBO"
    traits: ClassVar[Traits] = Traits(
        truncated_series=True, inner_rule="plain", outer_at="start", outer_draw=0
    )

    @property
    def draws(self) -> int:
        return (self.inner_steps + 1) * self._per_turn

    @property
    def _per_turn(self) -> int:
        return 1 if self.batches == "shared" else self.products + 2

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> VRBOState:
        x, y = self.prepare(x0, y0, batch)
        if self.inner_steps > 1 and carried_state(self.problem, batch) is not None:
            raise ValueError(
                f"VRBO takes inner_steps={self.inner_steps} steps on y, each from the difference of two points on one "
                "batch, and an inner objective with a `state` is another function at each of them: pass inner_steps=1, "
                "hold the state fixed, or take bl.stocbio"
            )
        memories = self.inner.init(y), self.outer.init(x)
        return VRBOState(x, y, *memories, tree.zeros_like(Pair(x, y)), jnp.int32(0))

    def step(self, state: VRBOState, batch: Batch | Draws | None = None) -> tuple[VRBOState, Info]:
        problem, drawn, here = self.problem, draws(batch), Pair(state.x, state.y)
        S, everything = drawn[0], whole(first(batch), self.name)
        restart = lambda: self._directions(here, lambda _: everything)
        d = lax.cond(state.k == 0, restart, lambda: state.directions)
        hypergradient, value = d.x, problem.f(here.x, here.y, S)
        for_x = leaning(lambda x: problem.f(x, here.y, S), here.x, hypergradient)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, here.x, for_x)

        def renew(d, before, y, t):
            of_turn = lambda i: drawn[t * self._per_turn + i]
            now, then = at_both(lambda at: self._directions(at, of_turn), Pair(x, y), before)
            return recursive(d, now, then), then.y

        def turn(carry, t):
            d, before, y, memory, first_gradient = carry
            d, gradient = renew(d, before, y, t)
            for_y = leaning(lambda y: problem.g(x, y, drawn[t * self._per_turn]), y, d.y)
            after, memory = descend(self.inner, d.y, memory, y, for_y)
            return (d, Pair(x, y), after, memory, select(t == 0, gradient, first_gradient)), None

        start = d, here, here.y, state.inner, tree.zeros_like(here.y)
        turns = jnp.arange(self.inner_steps, dtype=jnp.int32)
        (d, before, y, inner_memory, gradient), _ = lax.scan(turn, start, turns)
        d, _ = renew(d, before, y, self.inner_steps)
        state = VRBOState(x, y, inner_memory, outer_memory, d, (state.k + 1) % self.period)
        return state, Info(value, hypergradient, gradient, {})

    def _directions(self, at: Pair, drawn: Drawn) -> Pair:
        """Return ∇̂Φ and ∇_y g on the draws of one turn."""
        of = (lambda _: drawn(0)) if self._per_turn == 1 else drawn
        invert = series(self.problem, of, self.adjoint, self.products)
        return estimate(self.problem.oracles, at, invert, of(0), of(self.products + 1)).directions


@factory()
def vrbo(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: Number,
    outer: StepSize | Rule,
    period: int = 8,
    products: int = 3,
    inner_steps: int = 1,
    batches: str = "independent",
) -> VRBO:
    """Estimate `bl.solvers.mrbo`'s two directions D = (∇_y g, ∇̂Φ) as SPIDER does, with N steps on y:

        d_k     = D(x_k, y_k)                                          every `period` steps, on all the data
        x_{k+1} = x_k − β d_k^x                                        w_{−1} = (x_k, y_k),  w_t = (x_{k+1}, y_t)
        d ← D(w_t; B_t) − D(w_{t−1}; B_t) + d      y_{t+1} = y_t − α d^y      t = 0, …, N − 1,  y_0 = y_k
        d_{k+1} = D(w_N; B_N) − D(w_{N−1}; B_N) + d                    y_{k+1} = y_N

    The truncated series leaves `stocbio`'s bias. In a sweep every step pays for the full pass. J. Yang, K. Ji, Y.
    Liang, "Provably faster algorithms for bilevel optimization", NeurIPS 2021, where the restart takes a large batch.
    In [benchmark_bilevel](https://github.com/benchopt/benchmark_bilevel) both points of the first difference are at
    x_{k+1}, so d misses the change by the step on x. Here it does not.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, at most 1/L.
        outer: β as a float, or any optax transformation.
        period: the number of steps from one full pass to the next.
        products: Q, the number of Hessian products per point.
        inner_steps: N, the number of steps on y per step on x.
        batches: "independent", (N + 1)(Q + 2) draws per step; or "shared", N + 1, one for all terms of a difference.
    """
    return VRBO(problem, inner, adjoint, outer, period, products, inner_steps, batches)
