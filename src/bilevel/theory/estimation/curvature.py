"""The quantities that the constants bound, at one point (x, y): all from products, none from matrices."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.theory.estimation.lanczos import Ritz, lanczos
from bilevel.theory.estimation.third import largest_slopes
from bilevel.types import PyTree, Scalar

WHOLE = 256  # unknowns up to which Lanczos goes through the whole spectrum of ∇²_yy g


class Curvature(NamedTuple):
    """At one point. Every entry but `mu` is at most the true norm there; `mu` is at least λ_min."""

    mu: Scalar  # smallest eigenvalue of ∇²_yy g
    mu_residual: Scalar  # how far the nearest eigenvalue may be from it
    L_yy: Scalar  # largest eigenvalue of ∇²_yy g
    L_xy: Scalar  # ‖∇²_xy g‖
    inner: Scalar  # ‖(∇²_xy g, ∇²_yy g)‖, the slope of ∇_y g in (x, y)
    outer: Scalar  # ‖∇²f‖ in (x, y)
    f_xx: Scalar  # its blocks
    f_xy: Scalar
    f_yy: Scalar
    slope: Scalar  # ‖∇f‖
    slope_y: Scalar  # ‖∇_y f‖
    third: Scalar  # the larger slope of ∇²_yy g and ∇²_xy g in (x, y)
    rho_xxy: Scalar  # slope of ∇²_xy g in x
    rho_xyy: Scalar  # slope of ∇²_yy g in x, which is that of ∇²_xy g in y
    rho_yyy: Scalar  # slope of ∇²_yy g in y


def curvature(
    problem: Problem, x: PyTree, y: PyTree, data: Batch | None, direction: PyTree, key: Array, steps: int
) -> Curvature:
    """The local constants; `direction`, a pair (ẋ, ẏ), is where the search for the third derivatives begins."""
    keys = jax.random.split(key, 4)
    ends = inner_spectrum(problem, x, y, data, keys[0], steps)
    f = problem.oracles.outer_gradients(x, y, data)
    L_xy, inner = _inner_norms(problem, x, y, data, keys[1], steps)
    outer, f_xx, f_xy, f_yy = _outer_norms(problem, x, y, data, keys[2], steps)
    # The power method converges faster than Lanczos.
    rho = largest_slopes(problem, x, y, data, direction, keys[3], -(-steps // 3))
    return Curvature(
        mu=ends.values[0],
        mu_residual=ends.residuals[0],
        L_yy=ends.values[-1],
        L_xy=L_xy,
        inner=inner,
        outer=outer,
        f_xx=f_xx,
        f_xy=f_xy,
        f_yy=f_yy,
        slope=tree.norm((f.x, f.y)),
        slope_y=tree.norm(f.y),
        third=jnp.maximum(rho.hessian, rho.cross),
        rho_xxy=rho.rho_xxy,
        rho_xyy=rho.rho_xyy,
        rho_yyy=rho.rho_yyy,
    )


def inner_spectrum(
    problem: Problem, x: PyTree, y: PyTree, data: Batch | None, key: Array, steps: int
) -> Ritz:
    """Of ∇²_yy g: the whole spectrum of a small one, because a large κ hides the small end from a few steps."""
    size = sum(leaf.size for leaf in jax.tree.leaves(y))
    steps = size if size <= WHOLE else steps
    return spectrum(problem.oracles.linearize(x, y, data).hessian, y, key, steps)


def spectrum(product: Callable[[PyTree], PyTree], like: PyTree, key: Array, steps: int) -> Ritz:
    """Ritz values of a symmetric operator on trees shaped like `like`, from a random start."""
    flat, unravel = ravel_pytree(like)
    start = jax.random.normal(key, flat.shape, flat.dtype)
    return lanczos(lambda v: ravel_pytree(product(unravel(v)))[0], start, steps, jax.random.fold_in(key, 1))


def _inner_norms(problem: Problem, x, y, data, key, steps) -> Float[Array, "2"]:
    """The largest singular values of v ↦ ∇²_xy g·v and v ↦ (∇²_xy g·v, ∇²_yy g·v)."""
    inner = problem.oracles.linearize(x, y, data)

    def largest(c: Array) -> Scalar:
        forward = lambda v: (inner.cross(v), _times(c, inner.hessian(v)))
        backward = jax.linear_transpose(forward, y)
        squares = spectrum(lambda v: backward(forward(v))[0], y, key, steps).values
        return jnp.sqrt(jnp.maximum(squares[-1], 0))

    return lax.map(largest, jnp.asarray([0.0, 1.0]))


def _outer_norms(problem: Problem, x, y, data, key, steps) -> Float[Array, "4"]:
    """‖∇²f‖ and the norms of its blocks xx, xy and yy. Only estimates need f's second derivatives in x; no solver does.

    The off-diagonal block and its transpose together are symmetric, with eigenvalues ± its singular values.
    """
    gradients = lambda x, y: tuple(problem.oracles.outer_gradients(x, y, data)[1:])
    product = jax.linearize(gradients, x, y)[1]

    def largest(c: Array) -> Scalar:
        def part(z: PyTree) -> PyTree:
            along_x, along_y = product(z[0], tree.zeros_like(y)), product(tree.zeros_like(x), z[1])
            upper = tree.add(_times(c[0], along_x[0]), _times(c[1], along_y[0]))
            return upper, tree.add(_times(c[1], along_x[1]), _times(c[2], along_y[1]))

        return jnp.max(jnp.abs(spectrum(part, (x, y), key, steps).values))

    return lax.map(largest, jnp.asarray([(1.0, 1.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]))


def _times(c: Array, a: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: c.astype(leaf.dtype) * leaf, a)
