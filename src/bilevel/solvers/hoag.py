"""HOAG: both inner solves to a tolerance that decreases along the run (Pedregosa 2016)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count, prepare
from bilevel.oracles import Oracles
from bilevel.problem import Batch, Problem
from bilevel.solvers.adjoints.base import residual
from bilevel.solvers.adjoints.krylov import conjugate_gradients
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.inner import inner_step
from bilevel.solvers.rule import Rule, as_rule, descend

PyTree = Any


class HOAGState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    v: PyTree  # v̂_k, the next warm start
    step: jax.Array  # k + 1
    inner: PyTree  # state of the inner rule
    outer: PyTree  # state of the outer rule


def quadratic_decrease(k: Any) -> Any:
    """ε_k = 0.1 / (k + 1)², one of the publication's summable sequences."""
    return 0.1 / (k + 1) ** 2


def hoag(
    problem: Problem,
    inner: Any,
    outer: Any,
    *,
    tolerance: Callable[[Any], Any] = quadratic_decrease,
    max_inner_steps: int = 1000,
    max_adjoint_steps: int = 1000,
) -> Solver:
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
        tolerance: k ↦ ε_k, positive and summable: any optax schedule will do.
        max_inner_steps: of the inner rule in one step; the trace's "inner_steps" shows whether it binds.
        max_adjoint_steps: of conjugate gradients in one step.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    if not callable(tolerance):
        raise TypeError(
            f"tolerance must be a function of the step number, not {tolerance!r}: pass e.g. "
            "optax.exponential_decay(0.1, transition_steps=1, decay_rate=0.9)"
        )
    max_inner_steps = check_count(max_inner_steps, "max_inner_steps")
    max_adjoint_steps = check_count(max_adjoint_steps, "max_adjoint_steps")
    oracles = problem.oracles

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> HOAGState:
        x, y = prepare(problem, x0, y0, batch)
        return HOAGState(x, y, tree.zeros_like(y), jnp.int32(0), inner_rule.init(y), outer_rule.init(x))

    def step(state: HOAGState, batch: Batch | None = None) -> tuple[HOAGState, Info]:
        x, dtype = state.x, jnp.result_type(*jax.tree.leaves(state.y))
        epsilon = jnp.asarray(tolerance(state.step.astype(dtype)), dtype)
        first = oracles.inner_gradient(x, state.y, batch)
        y, inner_memory, taken = _solve_inner(
            oracles, inner_rule, state, first, epsilon, max_inner_steps, batch
        )

        g, f = oracles.linearise(x, y, batch), oracles.outer_gradients(x, y, batch)
        v, products = conjugate_gradients(g, f.y, state.v, epsilon, max_adjoint_steps)
        hypergradient = tree.sub(f.x, g.cross(v))
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)

        metrics = {
            "tolerance": epsilon,
            "inner_steps": taken,
            "adjoint_steps": products,
            "adjoint_residual": tree.norm(residual(g, f.y, v)),
        }
        state = HOAGState(x, y, v, state.step + 1, inner_memory, outer_memory)
        return state, Info(f.value, hypergradient, first, metrics)

    return Solver("HOAG", problem, ("x", "y", "v"), init, step, warm_up=inner_step(oracles, inner_rule))


def _solve_inner(
    oracles: Oracles, rule: Rule, state: HOAGState, gradient: PyTree, epsilon: Any, max_steps: int, batch: Any
) -> tuple[PyTree, PyTree, jax.Array]:
    def unfinished(carry):
        _, gradient, _, taken = carry
        return (tree.norm(gradient) > epsilon) & (taken < max_steps)

    def advance(carry):
        y, gradient, memory, taken = carry
        y, memory = descend(rule, gradient, memory, y)
        return y, oracles.inner_gradient(state.x, y, batch), memory, taken + 1

    y, _, memory, taken = lax.while_loop(unfinished, advance, (state.y, gradient, state.inner, jnp.int32(0)))
    return y, memory, taken
