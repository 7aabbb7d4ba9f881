"""Inner steps with their derivative beside them, for an x of few entries: nothing of the inner loop is stored.

The derivative Z_t = dy_t/dx travels beside the inner iterate. For gradient descent

    Z_{t+1} = (I − α∇²_yy g(x, y_t)) Z_t − α∇²_yx g(x, y_t)

and for any rule through the rule's own derivative, its memory included. Each step costs as many products
with a direction in (x, y) as x has entries, whatever the number of steps; the memory does not grow with them.

L. Franceschi, M. Donini, P. Frasconi, M. Pontil, "Forward and reverse gradient-based hyperparameter
optimization", ICML 2017.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.solvers.ingredients.inner import inner_rule
from bilevel.solvers.ingredients.trees import select
from bilevel.solvers.ingredients.unroll import split
from bilevel.solvers.rules import Rule, descend
from bilevel.types import PyTree, Scalar


class Pushed(NamedTuple):
    y: PyTree  # y_N
    memory: PyTree  # m_N
    z: PyTree  # Z_N of y and of the memory's floating part, one row for every entry of x
    gradient: PyTree  # ∇_y g at y_0


def push(
    problem: Problem,
    rule: Rule,
    steps: int,
    x: PyTree,
    y: PyTree,
    memory: PyTree,
    z: PyTree,
    batch: Batch | None,
) -> Pushed:
    """`steps` inner steps from (y, memory) at x, and their derivative from Z."""
    basis = unit_directions(x)

    def step(carry, t):
        y, memory, z, first = carry
        g = problem.oracles.linearise_jointly(x, y, batch)
        moving, rebuild = split(memory)

        def update(
            gradient, moving, y, x
        ):  # x matters to rules that ask for the value of g, and to a proximal map
            at_x = inner_rule(problem, rule, x)
            y, memory = descend(at_x, gradient, rebuild(moving), y, lambda y: problem.g(x, y, batch))
            return (y, split(memory)[0]), memory

        (y, _), tangent, memory = jax.linearize(update, g.gradient, moving, y, x, has_aux=True)
        z = jax.vmap(lambda e, z: tangent(g.push(e, z[0]), z[1], z[0], e))(basis, z)
        return (y, memory, z, select(t == 0, g.gradient, first)), None

    carry = y, memory, z, tree.zeros_like(y)
    return Pushed(*lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))[0])


def forward_hypergradient(
    problem: Problem, x: PyTree, y: PyTree, z: PyTree, batch: Batch | None
) -> tuple[Scalar, PyTree]:
    """f(x, y), and ∇_x f(x, y) + Zᵀ∇_y f(x, y)."""
    f = problem.oracles.outer_gradients(x, y, batch)
    along = jax.vmap(lambda row: jnp.asarray(tree.vdot(f.y, row)))(z[0])
    return f.value, tree.add(f.x, ravel_pytree(x)[1](along))


def displaced(x: PyTree, y: PyTree, z: PyTree, to: PyTree) -> PyTree:
    """y + Z(to − x): y as a function of x, by its derivative."""
    along, _ = ravel_pytree(tree.sub(to, x))
    return jax.tree.map(lambda a, rows: a + jnp.tensordot(along.astype(a.dtype), rows, axes=1), y, z[0])


def unit_directions(x: PyTree) -> PyTree:
    """The unit directions of x, stacked."""
    flat, unravel = ravel_pytree(x)
    return jax.vmap(unravel)(jnp.eye(flat.size, dtype=flat.dtype))


def no_derivative(x: PyTree, y: PyTree, memory: PyTree) -> PyTree:
    """Z = 0, of y and of the floating part of the memory, a row for every entry of x."""
    rows = sum(leaf.size for leaf in jax.tree.leaves(x))
    return jax.tree.map(lambda a: jnp.zeros((rows, *a.shape), a.dtype), (y, split(memory)[0]))
