"""stocBiO: a minibatch Neumann series with new data for every term (Ji, Yang & Liang 2021)."""

from typing import ClassVar

import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import with_state
from bilevel.checks import check_not_negative
from bilevel.solvers.adjoints.base import with_damping
from bilevel.solvers.fixed_points import residual
from bilevel.solvers.implicit_solver import SystemSolver
from bilevel.solvers.kit import Batch, Draws, ExplicitState, Info, Problem, Traits, descend, draws
from bilevel.solvers.options import Rule, check_batches, count, factory, field, positive, rule_of
from bilevel.solvers.parts.inner import Carried, carried, carried_state, next_state, seen_by
from bilevel.solvers.parts.trees import scaled, select
from bilevel.types import Number, PyTree, StepSize


class StocBiO(SystemSolver):
    inner: Rule = field(converter=rule_of("inner"))
    adjoint: Number = field(converter=positive("adjoint step size"))
    outer: Rule = field(converter=rule_of("outer"))
    damping: Number
    products: int = field(static=True, converter=count("products"))
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "stocBiO"
    traits: ClassVar[Traits] = Traits(
        supports_prox=True,
        uses_hessian=True,
        truncated_series=True,
        inner_rule="differentiable",
        extra_draws=1,
    )

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> ExplicitState:
        x, y = self.prepare(x0, y0, batch)
        return ExplicitState(x, y, self.inner.init(y), self.outer.init(x))

    def step(self, state: ExplicitState, batch: Batch | Draws | None = None) -> tuple[ExplicitState, Info]:
        x, drawn, N, Q = state.x, draws(batch), self.inner_steps, self.products
        y, inner, first, model = self.descend_inner(state, batch)
        system = self.system(x, y, inner, [seen_by(model, drawn[N + Q])])

        def add_term(carry, i):
            r, total = carry
            on_B = self.system(x, y, inner, [seen_by(model, drawn[N + i])], f=system.f)
            r = tree.sub(r, scaled(self.adjoint, with_damping(on_B.curvature, self.damping).hessian(r)))
            return (r, tree.add(total, r)), None

        (_, total), _ = lax.scan(add_term, (system.b, system.b), jnp.arange(Q, dtype=jnp.int32))
        v = scaled(self.adjoint, total)
        hypergradient = system.hypergradient(v)
        x, outer = descend(self.outer, hypergradient, state.outer, x, system.lagrangian(v))
        return ExplicitState(x, y, inner, outer), Info(system.f.value, hypergradient, first, {}, model)

    def descend_inner(
        self, state: ExplicitState, batch: Batch | Draws | None
    ) -> tuple[PyTree, PyTree, PyTree, Carried | None]:
        """Return y and the memory after the inner steps, the first residual, and the model's state."""
        x, problem, drawn, N = state.x, self.problem, draws(batch), self.inner_steps
        rule = self.inner_at(x)

        def inner_step(carry, t):
            y, memory, first, (_, s) = carry
            S = with_state(drawn[t], s)
            states = s, next_state(problem, x, y, S, s)
            gradient = problem.oracles.inner_gradient(x, y, S)
            at_y = residual(problem, rule, memory, y, gradient)
            y, memory = descend(rule, gradient, memory, y, lambda y: problem.g(x, y, S))
            return (y, memory, select(t == 0, at_y, first), states), None

        s = carried_state(problem, batch) if N > 1 else None
        start = state.y, state.inner, tree.zeros_like(state.y), (s, s)
        (y, memory, first, states), _ = lax.scan(inner_step, start, jnp.arange(N, dtype=jnp.int32))
        return y, memory, first, carried(*states)


@factory()
def stocbio(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    adjoint: Number,
    outer: StepSize | Rule,
    products: int = 3,
    inner_steps: int = 1,
    batches: str = "independent",
    damping: Number = 0.0,
) -> StocBiO:
    """Take N steps on y, Q factors of a Neumann series and one step on x:

        y_{t+1} = y_t − α ∇_y g(x_k, y_t; S_t)                                        t = 0, …, N − 1
        r_{i+1} = (I − η ∇²_yy g(x_k, ŷ_k; B_i)) r_i      r_0 = ∇_y f(x_k, ŷ_k; D)       i = 0, …, Q − 1
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k; D) − ∇²_xy g(x_k, ŷ_k; D) η Σ_{i=0}^{Q} r_i)

    S_t, B_i and D are N + Q + 1 independent batches. Factors with independent data multiply to an unbiased estimate of
    the truncated series. The truncation leaves the bias (I − η∇²_yy g)^{Q+1} ∇_y f in the adjoint system. Use `bl.iid`,
    or `bl.epochs`, whose batches within an epoch are disjoint. The publication lets the batches B_i shrink with i; here
    they have one size. On the full batch, and on "shared" batches, the method is `bl.aid` with
    `adjoints.neumann(adjoint, products)`, damped likewise.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        adjoint: η as a float, at most 1/(L + δ).
        outer: β as a float, or any optax transformation.
        products: Q, the number of Hessian products per step.
        inner_steps: N, the number of steps on y per step on x.
        batches: "independent", the N + Q + 1 draws; or "shared", one draw of each level per step.
        damping: δ, for ∇²_yy g + δI in place of ∇²_yy g, so that the factors do not grow where g is not convex. See
            `bl.adjoints.damped` for the bias it leaves.
    """
    check_not_negative(damping, "damping")
    return StocBiO(problem, inner, adjoint, outer, damping, products, inner_steps, batches)
