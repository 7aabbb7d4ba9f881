"""Random three-dimensional problems with ρ > 0 whose constants hold on the whole space.

    g(x, y) = ½yᵀHy + xᵀCy + cᵀy + τ Σ_i log cosh(u_iᵀy + z_iᵀx)      U orthogonal, ‖Z‖ = ζ
    f(x, y) = Σ_i w_i h(q_iᵀ(x, y) − b_i),  h(t) = δ²(√(1 + t²/δ²) − 1)      Q orthogonal

log cosh has second derivatives in (0, 1] and third ones up to 4/(3√3), h has |h'| < δ and h'' in (0, 1].
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from adversaries import Bounds

import bilevel as bl
from bilevel import theory

DIM = 3
BEND = 4 / (3 * np.sqrt(3))  # the largest third derivative of log cosh


class Inner(NamedTuple):
    H: Any
    C: Any
    c: Any
    U: Any
    Z: Any
    tau: Any


class Outer(NamedTuple):
    Q: Any
    w: Any
    b: Any
    delta: Any


def g(x: Any, y: Any, k: Inner) -> Any:
    t = k.U @ y + k.Z @ x
    log_cosh = jnp.abs(t) + jnp.log1p(jnp.exp(-2 * jnp.abs(t))) - np.log(2)
    return 0.5 * y @ k.H @ y + x @ k.C @ y + k.c @ y + k.tau * jnp.sum(log_cosh)


def f(x: Any, y: Any, k: Outer) -> Any:
    t = (k.Q @ jnp.concatenate([x, y]) - k.b) / k.delta
    return k.delta**2 * jnp.sum(k.w * t * t / (jnp.sqrt(1 + t * t) + 1))


PROBLEM = bl.Problem(outer=f, inner=g)


class Sample(NamedTuple):
    """Problems with one row each, their constants, and where their runs start."""

    bounds: Bounds
    inner: Inner
    outer: Outer
    x0: np.ndarray
    y_off: np.ndarray  # y₀ − y*(x₀)
    v_off: np.ndarray  # v₀/v*(x₀) − 1


def sample(rng: np.random.Generator, n: int, kappa: float = 30.0) -> Sample:
    turn = lambda size: np.linalg.qr(rng.standard_normal((n, size, size)))[0]
    spread = lambda low, high, shape: 10 ** rng.uniform(low, high, shape)
    shaped = lambda left, values, right: np.einsum("bij,bj,bjk->bik", left, values, right)
    norm = lambda A: np.linalg.norm(A, 2, axis=(1, 2))
    mu = spread(-1, 0.5, n)
    L = mu * np.exp(rng.uniform(0, np.log(kappa), n))
    tau = (L - mu) * rng.random(n) * (rng.random(n) < 0.7)
    zeta = rng.uniform(0.1, 1, n)
    U, P = turn(DIM), turn(DIM)
    H = shaped(P, np.column_stack([mu, L - tau, rng.uniform(mu, L - tau)]), np.swapaxes(P, 1, 2))
    C = shaped(turn(DIM), np.column_stack([L, L, L]) * rng.random((n, DIM)), turn(DIM))
    Z = zeta[:, None, None] * turn(DIM)
    Q, w = turn(2 * DIM), L[:, None] * rng.uniform(0.05, 1, (n, 2 * DIM))
    delta = spread(-1, 1, n)
    block = lambda columns: norm(np.einsum("bij,bi,bik->bjk", Q[:, :, columns], w, Q[:, :, columns]))
    f_xx, f_yy = block(slice(DIM)), block(slice(DIM, None))
    bounds = Bounds(
        mu=mu,
        L_yy=L,
        L_xy=norm(C) + tau * zeta,
        f_xx=f_xx,
        f_xy=np.minimum(np.sqrt(f_xx * f_yy), w.max(axis=1) / 2),  # ∇²f is positive and at most max w
        f_yy=f_yy,
        M_y=delta * np.linalg.norm(w, axis=1),
        rho_xxy=BEND * tau * zeta**2,
        rho_xyy=BEND * tau * zeta,
        rho_yyy=BEND * tau,
    )
    inner = Inner(H, C, rng.standard_normal((n, DIM)), U, Z, tau)
    outer = Outer(Q, w, rng.standard_normal((n, 2 * DIM)), delta)
    kind = rng.integers(0, 4, n)
    y_off = np.where(kind == 0, 0.0, spread(-2, 0, n))[:, None] * rng.standard_normal((n, DIM))
    v_off = np.select([kind == 1, kind == 2], [rng.choice([-0.3, 0.3], n), -1.0], 0.0)
    return Sample(bounds, inner, outer, rng.standard_normal((n, DIM)), y_off, v_off)


@jax.jit
def solved(x, guess, inner, outer):
    """y*, v*, Φ and ∇Φ at x, one problem a row, by Newton's method from a guess."""
    one = lambda x, guess, inner, outer: theory.exact(PROBLEM, x, guess, bl.Batch(inner=inner, outer=outer))
    return jax.vmap(one)(x, guess, inner, outer)


@jax.jit
def solved_along(x, guess, inner, outer):
    """Φ and ‖∇Φ‖² at every x of every run; x has the problems first and the iterations second."""

    def one(x, guess, inner, outer):
        def at(guess, x):
            star = theory.exact(PROBLEM, x, guess, bl.Batch(inner=inner, outer=outer))
            return star.y, (star.value, jnp.sum(star.hypergradient**2))

        return jax.lax.scan(at, guess, x)[1]

    return jax.vmap(one)(x, guess, inner, outer)
