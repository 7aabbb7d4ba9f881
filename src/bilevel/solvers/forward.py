"""Forward-mode iterative differentiation, for an x of few entries: nothing of the inner loop is stored.

The derivative Z_t = dy_t/dx travels beside the inner iterate. For gradient descent

    Z_{t+1} = (I − α∇²_yy g(x, y_t)) Z_t − α∇²_yx g(x, y_t)

and for any rule through the rule's own derivative, its memory included. Each step costs as many products
with a direction in (x, y) as x has entries, whatever the number of steps; the memory does not grow with them.

L. Franceschi, M. Donini, P. Frasconi, M. Pontil, "Forward and reverse gradient-based hyperparameter
optimization", ICML 2017.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevel.checks import check_count, prepare
from bilevel.oracles import Oracles
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.inner import inner_step
from bilevel.solvers.itd import ITDState
from bilevel.solvers.rule import Rule, as_rule, descend
from bilevel.solvers.trees import select
from bilevel.solvers.unroll import differentiable, split

PyTree = Any


class RTHOState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # y_k
    z: PyTree  # Z_k of y and of the inner rule's memory, one row for every entry of x
    inner: PyTree  # state of the inner rule
    outer: PyTree  # state of the outer rule


def forward_itd(problem: Problem, inner: Any, outer: Any, inner_steps: int = 1) -> Solver:
    """[`itd`][bilevel.itd] with its hypergradient in forward mode: the same iterates, other costs.

        x_{k+1} = x_k − β (∇_x f(x_k, y_k^N) + Z_Nᵀ∇_y f(x_k, y_k^N))      Z_0 = 0,   y_k⁰ = y_{k−1}^N

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the steps on y per step on x, all on the same batch.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    oracles, inner_steps = problem.oracles, check_count(inner_steps, "inner_steps")
    push = _push(oracles, inner_rule, inner_steps)

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> ITDState:
        x, y = prepare(problem, x0, y0, batch)
        return ITDState(x, y, inner_rule.init(y), outer_rule.init(x))

    def step(state: ITDState, batch: Batch | None = None) -> tuple[ITDState, Info]:
        x, zero = state.x, _no_tangent(state.x, state.y, state.inner)
        y, inner_memory, z, gradient = push(x, state.y, state.inner, zero, batch)
        value, hypergradient = _hypergradient(oracles, x, y, z, batch)
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)
        return ITDState(x, y, inner_memory, outer_memory), Info(value, hypergradient, gradient, {})

    return Solver("forward ITD", problem, ("x", "y"), init, step, inner_step(oracles, inner_rule))


def rtho(problem: Problem, inner: Any, outer: Any, inner_steps: int = 1) -> Solver:
    """Real-time hyperparameter optimisation: forward mode whose Z, like y, goes on from the last outer step.

        Z_0 at step k is Z_N of step k−1:   Z ← (I − α∇²_yy g) Z − α∇²_yx g

    Z then tracks dy*/dx = −(∇²_yy g)⁻¹∇²_yx g, so that, unlike in [`itd`][bilevel.itd], no bias remains
    however few the inner steps. It lives in the state: as many copies of y as x has entries.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: the steps on y per step on x (Δ in the publication), all on the same batch.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    oracles, inner_steps = problem.oracles, check_count(inner_steps, "inner_steps")
    push = _push(oracles, inner_rule, inner_steps)

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> RTHOState:
        x, y = prepare(problem, x0, y0, batch)
        memory = inner_rule.init(y)
        return RTHOState(x, y, _no_tangent(x, y, memory), memory, outer_rule.init(x))

    def step(state: RTHOState, batch: Batch | None = None) -> tuple[RTHOState, Info]:
        x = state.x
        y, inner_memory, z, gradient = push(x, state.y, state.inner, state.z, batch)
        value, hypergradient = _hypergradient(oracles, x, y, z, batch)
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)
        return RTHOState(x, y, z, inner_memory, outer_memory), Info(value, hypergradient, gradient, {})

    return Solver("RTHO", problem, ("x", "y", "z"), init, step, inner_step(oracles, inner_rule))


def _push(oracles: Oracles, rule: Rule, steps: int) -> Callable:
    """`steps` inner steps with the derivative beside them: (y, memory, Z, ∇_y g at the start)."""

    def run(x: PyTree, y: PyTree, memory: PyTree, z: PyTree, batch: Batch | None):
        basis = _basis(x)

        def step(carry, t):
            y, memory, z, first = carry
            g = oracles.linearise_jointly(x, y, batch)
            moving, update = differentiable(rule, memory)
            (y, _), tangent, memory = jax.linearize(update, g.gradient, moving, y, has_aux=True)
            z = jax.vmap(lambda e, z: tangent(g.push(e, z[0]), z[1], z[0]))(basis, z)
            return (y, memory, z, select(t == 0, g.gradient, first)), None

        carry = y, memory, z, tree.zeros_like(y)
        return lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))[0]

    return run


def _hypergradient(
    oracles: Oracles, x: PyTree, y: PyTree, z: PyTree, batch: Batch | None
) -> tuple[Any, PyTree]:
    f = oracles.outer_gradients(x, y, batch)
    along = jax.vmap(lambda row: jnp.asarray(tree.vdot(f.y, row)))(z[0])
    return f.value, tree.add(f.x, ravel_pytree(x)[1](along))


def _basis(x: PyTree) -> PyTree:
    """The unit directions of x, stacked."""
    flat, unravel = ravel_pytree(x)
    return jax.vmap(unravel)(jnp.eye(flat.size, dtype=flat.dtype))


def _no_tangent(x: PyTree, y: PyTree, memory: PyTree) -> PyTree:
    """Z = 0, of y and of the floating part of the memory, a row for every entry of x."""
    rows = sum(leaf.size for leaf in jax.tree.leaves(x))
    return jax.tree.map(lambda a: jnp.zeros((rows, *a.shape), a.dtype), (y, split(memory)[0]))
