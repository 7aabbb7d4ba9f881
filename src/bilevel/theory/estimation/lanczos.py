"""Extreme eigenvalues of a symmetric operator, from products with it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Vector = Float[Array, " n"]


class Ritz(NamedTuple):
    """Approximate eigenvalues, with error bounds."""

    values: Float[Array, " steps"]  # ascending
    residuals: Float[Array, " steps"]  # there is an eigenvalue within this distance of each value


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
