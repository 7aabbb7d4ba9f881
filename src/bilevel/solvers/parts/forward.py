"""Inner steps in forward mode, for an x of few entries: nothing of the inner loop is stored.

The derivative Z_t = dy_t/dx is updated along with the inner iterate. For gradient descent

    Z_{t+1} = (I − α∇²_yy g(x, y_t)) Z_t − α∇²_yx g(x, y_t)

Other rules use the rule's derivative, with its memory. A model's state is differentiated too. Each step costs
as many products with a direction in (x, y) as x has entries. The memory does not grow with the steps.

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

from bilevel.batch import Batch, Draws, draws, with_state
from bilevel.problem import Problem
from bilevel.solvers.parts.inner import Carried, carried, inner_rule, next_state
from bilevel.solvers.parts.trees import select, split
from bilevel.solvers.parts.unroll import state_gradient
from bilevel.solvers.rules import Rule, descend
from bilevel.types import PyTree, Scalar


class Directions(NamedTuple):
    """Z: the derivatives in every entry of x, along the first axis."""

    y: PyTree
    memory: list[Any]  # of its floating leaves
    state: list[Any]  # of the floating leaves of the model's state


class Pushed(NamedTuple):
    y: PyTree  # y_N
    memory: PyTree  # m_N
    z: Directions  # Z_N of y, of the memory and of s_N
    gradient: PyTree  # ∇_y g at y_0
    z_seen: PyTree  # Z of s_{N−1}, the state in the last step
    last: Batch | None  # the last draw, with that state
    model: Carried | None


def push(
    problem: Problem,
    rule: Rule,
    steps: int,
    x: PyTree,
    y: PyTree,
    memory: PyTree,
    z: Directions,
    state: PyTree,
    batch: Batch | Draws | None,
) -> Pushed:
    """Take `steps` inner steps from (y, memory) and the model's state at x, with their derivative from Z."""
    basis, drawn = unit_directions(x), draws(batch)

    def step(carry, t):
        y, memory, z, first, (_, _, state) = carry
        batch = with_state(drawn[t], state)
        gradient, tangent_of_g, after = linearized_jointly(problem, x, y, batch, state)
        moving, rebuild = split(memory)

        def update(
            gradient, moving, y, x
        ):  # only rules that ask for the value of g, and a proximal map, depend on x
            at_x = inner_rule(problem, rule, x)
            y, memory = descend(at_x, gradient, rebuild(moving), y, lambda y: problem.g(x, y, batch))
            return (y, split(memory)[0]), memory

        def pushed(e, z):
            of_gradient, of_state = tangent_of_g(e, z.y, z.state)
            of_y, of_memory = tangent(of_gradient, z.memory, z.y, e)
            return Directions(of_y, of_memory, of_state)

        (y, _), tangent, memory = jax.linearize(update, gradient, moving, y, x, has_aux=True)
        states = z.state, state, after
        return (y, memory, jax.vmap(pushed)(basis, z), select(t == 0, gradient, first), states), None

    carry = y, memory, z, tree.zeros_like(y), (z.state, state, state)
    end, _ = lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))
    y, memory, z, gradient, (z_seen, *states) = end
    last = with_state(drawn[steps - 1], states[0])
    return Pushed(y, memory, z, gradient, z_seen, last, carried(*states))


def linearized_jointly(
    problem: Problem, x: PyTree, y: PyTree, batch: Batch | None, state: PyTree
) -> tuple[PyTree, Callable[..., tuple[PyTree, PyTree]], PyTree]:
    """Return (∇_y g, push, the next state), where push maps (dx, dy, ds) to the derivatives of both."""
    if state is None:
        g = problem.oracles.linearize_jointly(x, y, batch)
        return g.gradient, lambda dx, dy, ds: (g.push(dx, dy), ds), None
    moving, rebuild = split(state)

    def function(x: PyTree, y: PyTree, moving: list[Any]) -> tuple[tuple[PyTree, list[Any]], PyTree]:
        seen = with_state(batch, state := rebuild(moving))
        after = next_state(problem, x, y, seen, state)
        return (problem.oracles.inner_gradient(x, y, seen), split(after)[0]), after

    (gradient, _), push, after = jax.linearize(function, x, y, moving, has_aux=True)
    return gradient, push, after


def forward_hypergradient(problem: Problem, x: PyTree, pushed: Pushed) -> tuple[Scalar, PyTree]:
    """Return f(x, y_N), and ∇_x f + Zᵀ∇_y f with the part through the state in f."""
    y, batch = pushed.y, pushed.last
    f = problem.oracles.outer_gradients(x, y, batch)
    slopes = f.y, state_gradient(problem, x, y, batch, pushed.model)
    along = jax.vmap(lambda *row: jnp.asarray(tree.vdot(slopes, row)))(pushed.z.y, pushed.z_seen)
    return f.value, tree.add(f.x, ravel_pytree(x)[1](along))


def displaced(x: PyTree, y: PyTree, z: Directions, to: PyTree) -> PyTree:
    """Return y + Z(to − x): y as a function of x, to first order."""
    along, _ = ravel_pytree(tree.sub(to, x))
    return jax.tree.map(lambda a, rows: a + jnp.tensordot(along.astype(a.dtype), rows, axes=1), y, z.y)


def unit_directions(x: PyTree) -> PyTree:
    """Return the unit directions of x, stacked."""
    flat, unravel = ravel_pytree(x)
    return jax.vmap(unravel)(jnp.eye(flat.size, dtype=flat.dtype))


def no_derivative(x: PyTree, y: PyTree, memory: PyTree, state: PyTree) -> Directions:
    """Return Z = 0 for y and the floating parts of memory and state, with a row for every entry of x."""
    rows = sum(leaf.size for leaf in jax.tree.leaves(x))
    moving = Directions(y, split(memory)[0], split(state)[0])
    return jax.tree.map(lambda a: jnp.zeros((rows, *a.shape), a.dtype), moving)
