"""Quantities that the constants bound, at one point (x, y), from products without matrices."""

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
from bilevel.types import PyTree, Scalar

WHOLE = 256  # unknowns up to which Lanczos finds the whole spectrum of ∇²_yy g
STARTS = 4  # of each search for a third derivative
Vector = Float[Array, " n"]


class Ritz(NamedTuple):
    """Approximate eigenvalues, with error bounds."""

    values: Float[Array, " steps"]  # ascending
    residuals: Float[Array, " steps"]  # there is an eigenvalue within this distance of each value


class LocalConstants(NamedTuple):
    """Constants at one point. Every entry but `mu` is at most the true norm there; `mu` is at least λ_min."""

    mu: Scalar  # smallest eigenvalue of ∇²_yy g
    mu_residual: Scalar  # how far the nearest eigenvalue may be from it
    L_yy: Scalar  # largest eigenvalue of ∇²_yy g
    L_xy: Scalar  # ‖∇²_xy g‖
    L: Scalar  # the larger of ‖(∇²_xy g, ∇²_yy g)‖, the slope of ∇_y g in (x, y), and of ‖∇²f‖
    f_xx: Scalar  # norms of the blocks of ∇²f
    f_xy: Scalar
    f_yy: Scalar
    M: Scalar  # ‖∇f‖
    M_y: Scalar  # ‖∇_y f‖
    rho: Scalar  # the larger slope of ∇²_yy g and ∇²_xy g in (x, y)
    rho_xxy: Scalar  # slope of ∇²_xy g in x
    rho_xyy: Scalar  # slope of ∇²_yy g in x, equal to the slope of ∇²_xy g in y
    rho_yyy: Scalar  # slope of ∇²_yy g in y


def local_constants(
    problem: Problem, steps: int, x: PyTree, y: PyTree, there: PyTree, data: Batch | None, key: Array
) -> LocalConstants:
    """Return the constants at (x, y).

    The search for third derivatives starts in the direction of `there`, a pair (x', y'), or in a random one
    if this is the same place.
    """
    towards, drawn = tree.sub(there, (x, y)), random_unit((x, y), jax.random.fold_in(key, 7))
    apart = tree.norm(towards) > 0
    direction = jax.tree.map(lambda a, b: jnp.where(apart, a, b), towards, drawn)
    keys = jax.random.split(key, 4)
    ends = inner_spectrum(problem, steps, x, y, data, keys[0])
    f = problem.oracles.outer_gradients(x, y, data)
    L_xy, inner = _inner_norms(problem, x, y, data, keys[1], steps)
    outer, f_xx, f_xy, f_yy = _outer_norms(problem, x, y, data, keys[2], steps)
    # The power method converges faster than Lanczos.
    rho = _third_derivatives(problem, x, y, data, direction, keys[3], -(-steps // 3))
    mu, L_yy = ends.values[0], ends.values[-1]
    L, M, M_y = jnp.max(jnp.stack([inner, L_yy, outer])), tree.norm((f.x, f.y)), tree.norm(f.y)
    of_g, of_f = (L_yy, L_xy, L), (f_xx, f_xy, f_yy, M, M_y)
    return LocalConstants(mu, ends.residuals[0], *of_g, *of_f, jnp.max(rho), rho[0], rho[1], rho[2])


def inner_spectrum(
    problem: Problem, steps: int, x: PyTree, y: PyTree, data: Batch | None, key: Array
) -> Ritz:
    """Return Ritz values of ∇²_yy g: all of a small one, as a few steps miss the small end for a large κ."""
    size = sum(leaf.size for leaf in jax.tree.leaves(y))
    steps = size if size <= WHOLE else steps
    return spectrum(problem.oracles.linearize(x, y, data).hessian, y, key, steps)


def spectrum(product: Callable[[PyTree], PyTree], like: PyTree, key: Array, steps: int) -> Ritz:
    """Return Ritz values of a symmetric operator on trees shaped like `like`, from a random start."""
    flat, unravel = ravel_pytree(like)
    start = jax.random.normal(key, flat.shape, flat.dtype)
    return lanczos(lambda v: ravel_pytree(product(unravel(v)))[0], start, steps, jax.random.fold_in(key, 1))


def _inner_norms(problem: Problem, x, y, data, key, steps) -> Float[Array, "2"]:
    """Return the largest singular values of v ↦ ∇²_xy g·v and v ↦ (∇²_xy g·v, ∇²_yy g·v)."""
    inner = problem.oracles.linearize(x, y, data)

    def largest(c: Array) -> Scalar:
        forward = lambda v: (inner.cross(v), _times(c, inner.hessian(v)))
        backward = jax.linear_transpose(forward, y)
        squares = spectrum(lambda v: backward(forward(v))[0], y, key, steps).values
        return jnp.sqrt(jnp.maximum(squares[-1], 0))

    return lax.map(largest, jnp.asarray([0.0, 1.0]))


def _outer_norms(problem: Problem, x, y, data, key, steps) -> Float[Array, "4"]:
    """Return ‖∇²f‖ and the norms of its blocks xx, xy and yy. No solver needs f's second derivatives in x.

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


def lanczos(product: Callable[[Vector], Vector], start: Vector, steps: int, key: Array) -> Ritz:
    """Return the Ritz values of the symmetric `product`, ascending, after `steps` Lanczos steps from `start`.

    v_{j+1} ∝ A v_j − Σ_{i≤j} ⟨v_i, A v_j⟩ v_i, orthogonalized twice against all earlier vectors. So no ghost
    copies of converged eigenvalues appear. A Ritz value is a Rayleigh quotient, so it is within the spectrum
    up to rounding. Where the Krylov space is exhausted, the iteration continues with a random vector
    orthogonal to it. So n steps give all n eigenvalues.

    The residual ‖Au − θu‖ of a Ritz pair is |β_k s_k|, with s_k the last entry of its vector in the Krylov
    basis. There is an eigenvalue in [θ − residual, θ + residual]. For the smallest θ it need not be the
    smallest one.
    """
    n = start.size
    steps = min(steps, n)
    tiny = jnp.finfo(start.dtype).tiny
    dot = lambda A, w: jnp.matmul(A, w, precision=lax.Precision.HIGHEST)
    unit = lambda w: w / jnp.maximum(jnp.linalg.norm(w), tiny)

    def orthogonalize(V, w):
        for _ in range(2):
            w = w - dot(V.T, dot(V, w))
        return w

    def step(j, carry):
        V, diagonal, off, v, scale = carry
        V = V.at[j].set(v)
        image = product(v)
        alpha = dot(v, image)
        scale = jnp.maximum(scale, jnp.linalg.norm(image))
        w = orthogonalize(V, image)
        beta = jnp.linalg.norm(w)
        exhausted = beta <= n**0.5 * jnp.finfo(start.dtype).eps * scale
        fresh = orthogonalize(V, jax.random.normal(jax.random.fold_in(key, j), (n,), start.dtype))
        # A tiny w is mostly rounding and not orthogonal: orthogonalize again at length one.
        following = unit(orthogonalize(V, unit(jnp.where(exhausted, fresh, w))))
        off = off.at[j].set(jnp.where(exhausted, jnp.zeros_like(beta), beta))
        return V, diagonal.at[j].set(alpha), off, following, scale

    zeros = jnp.zeros(steps, start.dtype)
    V = jnp.zeros((steps, n), start.dtype)
    _, diagonal, off, _, _ = lax.fori_loop(
        0, steps, step, (V, zeros, zeros, unit(start), jnp.zeros((), start.dtype))
    )
    values, vectors = jnp.linalg.eigh(jnp.diag(diagonal) + jnp.diag(off[:-1], 1) + jnp.diag(off[:-1], -1))
    left = off[-1] if steps < n else jnp.zeros_like(off[-1])  # n steps span the whole space
    return Ritz(values, jnp.abs(left * vectors[-1]))


# Weights of d's and of u's parts in x and in y, for each search of `_third_derivatives`.
KEPT = [
    ((1.0, 0.0), (1.0, 0.0)),  # ρ_xxy: the slope of ∇²_xy g in x
    ((1.0, 0.0), (0.0, 1.0)),  # ρ_xyy: of ∇²_yy g in x, equal to the slope of ∇²_xy g in y
    ((0.0, 1.0), (0.0, 1.0)),  # ρ_yyy: of ∇²_yy g in y
    ((1.0, 1.0), (0.0, 1.0)),  # of ∇²_yy g jointly
    ((1.0, 1.0), (1.0, 0.0)),  # of ∇²_xy g jointly
]


def _third_derivatives(
    problem: Problem, x: PyTree, y: PyTree, data: Batch | None, direction: PyTree, key: Array, steps: int
) -> Float[Array, "5"]:
    """Return the largest T(d, v, u) = ⟨u, d/dt B(z + td)·v⟩ found over unit vectors, B = (∇²_xy g, ∇²_yy g).

    The higher-order power method sets each argument to the normalized gradient of T in it. T is linear in each
    argument, so no update lowers it. The result may be a local maximum. So the search has `STARTS` starts, the
    first with d in the given direction, the others random.
    """

    def largest(kept: Array) -> Scalar:
        keep = lambda which, z: tuple(_times(c, part) for c, part in zip(kept[which], z, strict=True))

        def form(d, v, u):
            def product(x, y):
                inner = problem.oracles.linearize(x, y, data)
                return inner.cross(v), inner.hessian(v)

            return tree.vdot(keep(1, u), jax.jvp(product, (x, y), keep(0, d))[1])

        def ascend(_, factors):
            d, v, u = factors
            u = _unit(jax.grad(form, argnums=2)(d, v, u))
            v = _unit(jax.grad(form, argnums=1)(d, v, u))
            d = _unit(jax.grad(form, argnums=0)(d, v, u))
            return d, v, u

        def climb(start: Array) -> Scalar:
            first, second = jax.random.split(jax.random.fold_in(key, start))
            given, drawn = _unit(keep(0, direction)), _unit(keep(0, random_unit((x, y), first)))
            d = jax.tree.map(lambda a, b: jnp.where(start == 0, a, b), given, drawn)
            factors = lax.fori_loop(0, steps, ascend, (d, random_unit(y, second), tree.zeros_like((x, y))))
            return jnp.abs(form(*factors))

        return jnp.max(lax.map(climb, jnp.arange(STARTS)))

    return lax.map(largest, jnp.asarray(KEPT))


def random_unit(like: PyTree, key: Array) -> PyTree:
    flat, unravel = ravel_pytree(like)
    return _unit(unravel(jax.random.normal(key, flat.shape, flat.dtype)))


def _unit(a: PyTree) -> PyTree:
    size = tree.norm(a)
    return tree.scale(1 / jnp.maximum(size, jnp.finfo(size.dtype).tiny), a)


def _times(c: Array, a: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: c.astype(leaf.dtype) * leaf, a)
