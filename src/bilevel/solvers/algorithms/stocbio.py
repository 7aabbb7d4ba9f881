"""stocBiO: a minibatch Neumann series with data of its own for every term (Ji, Yang & Liang 2021)."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import Batch, Draws, draws, with_state
from bilevel.checks import check_count, check_not_negative, check_positive, check_problem, prepare
from bilevel.problem import Problem
from bilevel.solvers.adjoints.base import with_damping
from bilevel.solvers.base import ExplicitState, Info, Solver, check_batches
from bilevel.solvers.fixed_points import adjoint_system, check_rests, residual as at_rest
from bilevel.solvers.parts.inner import carried, carried_state, next_state, seen_by
from bilevel.solvers.parts.trees import scaled, select
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.solvers.traits import Traits
from bilevel.types import Number, PyTree, StepSize


class StocBiO(Solver):
    inner: Rule
    adjoint: Number
    outer: Rule
    damping: Number
    products: int = eqx.field(static=True)
    inner_steps: int = eqx.field(static=True)
    batches: str = eqx.field(static=True)
    name: ClassVar[str] = "stocBiO"
    traits: ClassVar[Traits] = Traits(supports_prox=True, uses_hessian=True, truncated_series=True)

    @property
    def draws(self) -> int:
        return 1 if self.batches == "shared" else self.inner_steps + self.products + 1

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> ExplicitState:
        x, y = prepare(self.problem, x0, y0, batch)
        check_rests(self, y)
        return ExplicitState(x, y, self.inner.init(y), self.outer.init(x))

    def step(self, state: ExplicitState, batch: Batch | Draws | None = None) -> tuple[ExplicitState, Info]:
        x, problem, oracles, drawn = state.x, self.problem, self.problem.oracles, draws(batch)
        N, Q, eta, rule = self.inner_steps, self.products, self.adjoint, self.inner_at(x)

        def inner_step(carry, t):
            y, memory, first, (_, s) = carry
            S = with_state(drawn[t], s)
            states = s, next_state(problem, x, y, S, s)
            gradient = oracles.inner_gradient(x, y, S)
            residual = at_rest(problem, rule, memory, y, gradient)
            y, memory = descend(rule, gradient, memory, y, lambda y: problem.g(x, y, S))
            return (y, memory, select(t == 0, residual, first), states), None

        s = carried_state(problem, batch) if N > 1 else None
        start = state.y, state.inner, tree.zeros_like(state.y), (s, s)
        (y, inner_memory, first, states), _ = lax.scan(inner_step, start, jnp.arange(N, dtype=jnp.int32))

        model = carried(*states)
        D = seen_by(model, drawn[N + Q])
        f = oracles.outer_gradients(x, y, D)

        def system(batch):
            g = oracles.curvature(x, y, batch)
            return adjoint_system(problem, rule, inner_memory, x, y, g, f.y, batch)

        def add_term(carry, i):
            r, total = carry
            curved = with_damping(system(seen_by(model, drawn[N + i])).inner, self.damping).hessian(r)
            r = tree.sub(r, scaled(eta, curved))
            return (r, tree.add(total, r)), None

        inner, b, lagrangian = system(D)
        (_, total), _ = lax.scan(add_term, (b, b), jnp.arange(Q, dtype=jnp.int32))
        v = scaled(eta, total)
        hypergradient = tree.sub(f.x, inner.cross(v))
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, lagrangian(v))
        state = ExplicitState(x, y, inner_memory, outer_memory)
        return state, Info(f.value, hypergradient, first, {}, model)


def stocbio(
    problem: Problem,
    inner: StepSize | Rule,
    adjoint: Number,
    outer: StepSize | Rule,
    *,
    products: int = 3,
    inner_steps: int = 1,
    batches: str = "independent",
    damping: Number = 0.0,
) -> StocBiO:
    """N steps on y, Q factors of a Neumann series, one step on x:

        y_{t+1} = y_t − α ∇_y g(x_k, y_t; S_t)                                        t = 0, …, N − 1
        r_{i+1} = (I − η ∇²_yy g(x_k, ŷ_k; B_i)) r_i      r_0 = ∇_y f(x_k, ŷ_k; D)       i = 0, …, Q − 1
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k; D) − ∇²_xy g(x_k, ŷ_k; D) η Σ_{i=0}^{Q} r_i)

    S_t, B_i and D are N + Q + 1 independent batches, drawn by the step. Factors with independent data multiply to
    an unbiased estimate of the truncated series; the truncation itself leaves the bias (I − η∇²_yy g)^{Q+1} ∇_y f in
    the adjoint system. Feed it `bl.iid`, or `bl.epochs`, whose batches within an epoch are disjoint.

    `damping` = δ puts ∇²_yy g + δI in place of ∇²_yy g, so that the factors do not grow where g is not convex; see
    `bl.adjoints.damped` for the bias it leaves.

    The publication lets the batches B_i shrink with i; here they have one size. On the full batch, and on "shared"
    ones, the method is `aid` with `adjoints.neumann(adjoint, products)`, damped likewise.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, at most 1/(L + δ).
        outer: β as a float, or any optax transformation.
        products: Q, the number of Hessian products per step.
        inner_steps: N, the number of steps on y per step on x.
        batches: "independent", the N + Q + 1 draws; or "shared", one draw of each level for all terms of a step.
        damping: δ, added to the curvature; none if left out.
    """
    check_positive(adjoint, "adjoint step size")
    check_not_negative(damping, "damping")
    return StocBiO(
        check_problem(problem),
        as_rule(inner, "inner"),
        adjoint,
        as_rule(outer, "outer"),
        damping,
        check_count(products, "products"),
        check_count(inner_steps, "inner_steps"),
        check_batches(batches),
    )
