"""Truncated Newton: minimise a function of y to a relative accuracy, without a step size."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.solvers.ingredients.trees import divide, dot, scaled, select
from bilevel.types import PyTree, Scalar

MOST_HALVINGS = 60


class Solved(NamedTuple):
    solution: PyTree
    products: Int[Array, ""]  # Hessian products taken
    settled: Bool[Array, ""]  # whether the accuracy was reached before the products ran out
    curvature: Scalar  # bᵀHb of conjugate gradients, zero if none were taken


def truncated_cg(hessian: Callable[[PyTree], PyTree], b: PyTree, tolerance: Scalar, most: Any) -> Solved:
    """s with ‖Hs − b‖ ≤ tolerance, by conjugate gradients from zero, which end where curvature is not positive."""
    tiny = jnp.finfo(tree.norm(b).dtype).eps

    def unfinished(carry):
        _, _, _, rr, taken, flat, _ = carry
        return (rr > tolerance**2) & (taken < most) & ~flat

    def advance(carry):
        s, r, p, rr, taken, _, at_first = carry
        image = hessian(p)
        curvature = dot(p, image)
        flat = ~(curvature > tiny * tree.norm(p) * tree.norm(image))
        a = jnp.where(flat, 0, divide(rr, curvature))
        s, r = tree.add(s, scaled(a, p)), tree.sub(r, scaled(a, image))
        after = tree.norm(r, squared=True)
        p = tree.add(r, scaled(divide(after, rr), p))
        return s, r, p, after, taken + 1, flat, jnp.where(taken == 0, curvature, at_first)

    size = tree.norm(b, squared=True)
    carry = tree.zeros_like(b), b, b, size, jnp.int32(0), jnp.array(False), jnp.zeros_like(size)
    s, _, _, rr, taken, _, curvature = lax.while_loop(unfinished, advance, carry)
    return Solved(s, taken, rr <= tolerance**2, curvature)


def minimise(
    problem: Problem, x: PyTree, y: PyTree, shift: PyTree, batch: Batch | None, accuracy: Scalar, most: int
) -> Solved:
    """y that makes ‖∇_y g(x, y) − shift‖ smaller by the factor `accuracy`, starting from y.

    Each direction is a truncated Newton one; where conjugate gradients meet no positive curvature at once, the
    gradient's, of the length at which the curvature's absolute value would end it. It is quartered until
    g(x, y) − ⟨shift, y⟩ falls. Settled is also a y whose value and gradient no direction lowers beyond rounding.
    """
    value = lambda y: problem.g(x, y, batch) - dot(shift, y)

    def unfinished(carry):
        _, _, _, taken, done = carry
        return ~done & (taken < most)

    def advance(carry):
        y, target, last, taken, _ = carry
        g = problem.oracles.linearise(x, y, batch)
        residual = tree.sub(g.gradient, shift)
        size = tree.norm(residual)
        target = jnp.where(taken == 0, accuracy * size, target)
        stuck = (
            size > 0.5 * last
        )  # the last direction could not lower the value beyond rounding, nor the gradient
        tolerance = jnp.where(stuck, jnp.inf, jnp.maximum(target, 0.1 * size))
        s, products, _, curvature = truncated_cg(g.hessian, residual, tolerance, most - taken)
        done = products == 0

        steep = scaled(jnp.where(curvature == 0, 1, divide(size**2, jnp.abs(curvature))), residual)
        s = select(~done & (tree.norm(s) == 0), steep, s)
        here, slope = value(y), dot(residual, s)
        rounding = 10 * jnp.finfo(here.dtype).eps * jnp.abs(here)

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
    return Solved(y, taken, done, zero)
