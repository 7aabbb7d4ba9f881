"""Conjugate gradients that end where curvature is not positive, and return the current iterate.

lineax is not used for this reason: its solver continues along a direction of negative curvature, which
networks have. Along a direction without curvature it returns NaN; the singular adjoint system of a projected
y has such directions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int
from optax import tree

from bilevel.solvers.parts.trees import divide, dot, scaled
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
