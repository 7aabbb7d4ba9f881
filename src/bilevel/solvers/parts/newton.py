"""Truncated Newton method, and the conjugate gradients in it, which other methods use too.

The conjugate gradients end where curvature is not positive, and return the current iterate. lineax is not used for
this reason: its solver continues along a direction of negative curvature, which networks have. Along a direction
without curvature it returns NaN; the singular adjoint system of a projected y has such directions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.solvers.parts.trees import divide, dot, scaled, select
from bilevel.types import PyTree, Scalar

Product = Callable[[PyTree], PyTree]


class Solved(NamedTuple):
    solution: PyTree
    products: Int[Array, ""]  # Hessian products taken
    settled: Bool[Array, ""]  # whether the accuracy was reached before the products ran out
    curvature: Scalar  # along the first direction; zero if there was none
    flat: Bool[Array, ""]  # whether a direction without positive curvature ended it early


class Search(NamedTuple):
    s: PyTree  # the iterate
    r: PyTree  # b − Hs
    p: PyTree  # the next direction
    rz: Scalar  # rᵀz, with z the preconditioned r
    taken: Int[Array, ""]
    flat: Bool[Array, ""]  # whether the last direction had no positive curvature
    first: Scalar  # the curvature along the first direction


def truncated_cg(
    hessian: Product,
    b: PyTree,
    tolerance: Any,
    most: Any,
    *,
    at_least: int = 0,
    preconditioner: Product = lambda r: r,
) -> Solved:
    """Return s with ‖Hs − b‖ ≤ tolerance, from zero, after `at_least` steps even if zero is good enough.

    A preconditioner is a symmetric positive definite approximation of H⁻¹, up to a factor.
    """

    def unfinished(now: Search):
        wanted = (tree.norm(now.r) > tolerance) | (now.taken < at_least)
        return wanted & ~now.flat & (now.rz > 0) & (now.taken < most)

    def advance(now: Search) -> Search:
        image = hessian(now.p)
        curvature = curvature_along(now.p, image)
        t = divide(now.rz, curvature)
        s, r = tree.add(now.s, scaled(t, now.p)), tree.sub(now.r, scaled(t, image))
        z = preconditioner(r)
        rz = dot(r, z)
        p = tree.add(z, scaled(divide(rz, now.rz), now.p))
        first = jnp.where(now.taken == 0, dot(now.p, image), now.first)
        return Search(s, r, p, rz, now.taken + 1, curvature == 0, first)

    z = preconditioner(b)
    rz = dot(b, z)
    start = Search(tree.zeros_like(b), b, z, rz, jnp.int32(0), jnp.array(False), jnp.zeros_like(rz))
    end = lax.while_loop(unfinished, advance, start)
    settled = tree.norm(end.r) <= tolerance
    return Solved(end.s, end.taken, settled, end.first, end.flat & ~settled)


def curvature_along(p: PyTree, image: PyTree) -> Scalar:
    """Return pᵀHp, or zero if it is negative or may be the rounding of a zero product."""
    curvature = dot(p, image)
    rounding = 16 * float(jnp.finfo(curvature.dtype).eps) * tree.norm(p) * tree.norm(image)
    return jnp.where(curvature > rounding, curvature, 0)


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
    start = y, zero, zero + jnp.inf, jnp.int32(0), jnp.array(False)
    y, _, _, taken, done = lax.while_loop(unfinished, advance, start)
    return Solved(y, taken, done, zero, jnp.array(False))


def resolution(variables: PyTree) -> float:
    """Return the largest ε of the variables' dtypes: the value of no objective is more accurate."""
    return max(float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(variables))
