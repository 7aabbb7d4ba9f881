"""Truncated Newton method: minimize a function of y to a relative accuracy, without a step size."""

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.solvers.parts.trees import divide, dot, scaled, select
from bilevel.solvers.parts.truncated_cg import Solved, truncated_cg
from bilevel.types import PyTree, Scalar

MOST_HALVINGS = 60


def minimize(
    problem: Problem, x: PyTree, y: PyTree, shift: PyTree, batch: Batch | None, accuracy: Scalar, most: int
) -> Solved:
    """Reduce ‖∇_y g(x, y) − shift‖ by the factor `accuracy`, starting from y.

    Each direction is a truncated Newton one. If conjugate gradients meet no positive curvature in their first
    step, it is the gradient. Its length is then the one at which the absolute curvature would end the
    descent. The direction is quartered until g(x, y) − ⟨shift, y⟩ falls. A y also counts as settled if no
    direction lowers its value or gradient beyond rounding.
    """

    def value(y):
        g = problem.g(x, y, batch)
        return g - dot(shift, y).astype(g.dtype)

    def unfinished(carry):
        _, _, _, taken, done = carry
        return ~done & (taken < most)

    def advance(carry):
        y, target, last, taken, _ = carry
        g = problem.oracles.linearize(x, y, batch)
        residual = tree.sub(g.gradient, shift)
        size = tree.norm(residual)
        target = jnp.where(taken == 0, accuracy * size, target)
        stuck = size > 0.5 * last  # neither value nor gradient fell beyond rounding along the last direction
        tolerance = jnp.where(stuck, jnp.inf, jnp.maximum(target, 0.1 * size))
        s, products, _, curvature, _ = truncated_cg(g.hessian, residual, tolerance, most - taken)
        done = products == 0

        steep = scaled(jnp.where(curvature == 0, 1, divide(size**2, jnp.abs(curvature))), residual)
        s = select(~done & (tree.norm(s) == 0), steep, s)
        here = value(y)
        slope = dot(residual, s).astype(here.dtype)
        rounding = 10 * resolution(y) * jnp.abs(here)

        def too_long(carry):
            t, times = carry
            there = value(tree.sub(y, scaled(t, s)))
            return ~(there <= here - 1e-4 * t * slope + rounding) & (times < MOST_HALVINGS)

        shorten = lambda carry: (carry[0] / 4, carry[1] + 1)
        t, _ = lax.while_loop(too_long, shorten, (jnp.ones_like(here), jnp.int32(0)))
        y = tree.sub(y, scaled(t, s))
        return y, target, jnp.where(slope <= rounding, size, jnp.inf), taken + products, done

    zero = jnp.zeros((), tree.norm(y).dtype)
    y, _, _, taken, done = lax.while_loop(
        unfinished, advance, (y, zero, zero + jnp.inf, jnp.int32(0), jnp.array(False))
    )
    return Solved(y, taken, done, zero, jnp.array(False))


def resolution(variables: PyTree) -> float:
    """Return the largest ε of the variables' dtypes: the value of no objective is more accurate."""
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(variables))
