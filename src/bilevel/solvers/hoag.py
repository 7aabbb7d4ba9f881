"""HOAG: both inner solves to a tolerance that decreases along the run (Pedregosa 2016)."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import Batch
from bilevel.checks import check_count, prepare
from bilevel.identity import Static
from bilevel.problem import Problem
from bilevel.solvers.adjoints.base import residual
from bilevel.solvers.adjoints.conjugate_gradients import conjugate_gradients
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.ingredients.lagrangian import lagrangian
from bilevel.solvers.rules import Rule, as_rule, descend
from bilevel.types import PyTree, Scalar, Schedule, StepSize


class HOAGState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    v: PyTree  # v̂_k, the next warm start
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]


class HOAG(Solver):
    inner: Rule
    outer: Rule
    tolerance: Static = eqx.field(static=True)
    max_inner_steps: int = eqx.field(static=True)
    max_adjoint_steps: int = eqx.field(static=True)
    name: ClassVar[str] = "HOAG"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> HOAGState:
        x, y = prepare(self.problem, x0, y0, batch)
        return HOAGState(x, y, tree.zeros_like(y), self.inner.init(y), self.outer.init(x), jnp.int32(0))

    def step(self, state: HOAGState, batch: Batch | None = None) -> tuple[HOAGState, Info]:
        x, problem, oracles = state.x, self.problem, self.problem.oracles
        dtype = jnp.result_type(*jax.tree.leaves(state.y))
        epsilon = jnp.asarray(self.tolerance.value(state.k.astype(dtype)), dtype)
        inner_gradient = oracles.inner_gradient(x, state.y, batch)
        y, inner_memory, inner_steps = solve_inner(
            problem, self.inner, self.max_inner_steps, epsilon, state, inner_gradient, batch
        )

        g, f = oracles.linearise(x, y, batch), oracles.outer_gradients(x, y, batch)
        v, adjoint_steps = conjugate_gradients(g, f.y, state.v, epsilon, self.max_adjoint_steps)
        hypergradient = tree.sub(f.x, g.cross(v))
        value = lagrangian(problem, y, v, batch)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)

        metrics = {
            "tolerance": epsilon,
            "inner_steps": inner_steps,
            "adjoint_steps": adjoint_steps,
            "adjoint_residual": tree.norm(residual(g, f.y, v)),
        }
        state = HOAGState(x, y, v, inner_memory, outer_memory, state.k + 1)
        return state, Info(f.value, hypergradient, inner_gradient, metrics)


def quadratic_decrease(k: Any) -> Any:
    """ε_k = 0.1 / (k + 1)², one of the publication's summable sequences."""
    return 0.1 / (k + 1) ** 2


def hoag(
    problem: Problem,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    *,
    tolerance: Schedule = quadratic_decrease,
    max_inner_steps: int = 1000,
    max_adjoint_steps: int = 1000,
) -> HOAG:
    """At every step, from the last solutions:

        ŷ_k:      steps of the inner rule until     ‖∇_y g(x_k, ŷ_k)‖ ≤ ε_k
        v̂_k:      conjugate gradients until         ‖∇²_yy g(x_k, ŷ_k) v̂_k − ∇_y f(x_k, ŷ_k)‖ ≤ ε_k
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − ∇²_xy g(x_k, ŷ_k) v̂_k)

    With Σ ε_k < ∞ and β small enough x_k tends to a stationary point. The publication bounds ‖ŷ_k − y*‖ by
    ε_k; here it is the gradient, which can be measured and bounds μ‖ŷ_k − y*‖. It projects x onto a box and
    in practice adapts β; here the outer rule decides.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        tolerance: the function k ↦ ε_k, positive and summable: any optax schedule will do.
        max_inner_steps: the number of steps on y to stop after; the trace's "inner_steps" shows whether it binds.
        max_adjoint_steps: the number of steps of conjugate gradients to stop after.
    """
    if not callable(tolerance):
        raise TypeError(
            f"tolerance must be a function of the step number, not {tolerance!r}: pass e.g. "
            "optax.exponential_decay(0.1, transition_steps=1, decay_rate=0.9)"
        )
    return HOAG(
        problem,
        as_rule(inner, "inner"),
        as_rule(outer, "outer"),
        Static(tolerance),
        check_count(max_inner_steps, "max_inner_steps"),
        check_count(max_adjoint_steps, "max_adjoint_steps"),
    )


def solve_inner(
    problem: Problem,
    rule: Rule,
    max_steps: int,
    epsilon: Scalar,
    state: HOAGState,
    gradient: PyTree,
    batch: Batch | None,
) -> tuple[PyTree, PyTree, Int[Array, ""]]:
    """(y, memory, the number of steps taken) with ‖∇_y g(x, y)‖ ≤ ε, unless `max_steps` came first."""
    value = lambda y: problem.g(state.x, y, batch)

    def unfinished(carry):
        _, gradient, _, taken = carry
        return (tree.norm(gradient) > epsilon) & (taken < max_steps)

    def advance(carry):
        y, gradient, memory, taken = carry
        y, memory = descend(rule, gradient, memory, y, value)
        return y, problem.oracles.inner_gradient(state.x, y, batch), memory, taken + 1

    y, _, memory, taken = lax.while_loop(unfinished, advance, (state.y, gradient, state.inner, jnp.int32(0)))
    return y, memory, taken
