"""One family of problems whose constants a start may hide, with all of its members in the data: compiled once.

    g = ½yᵀHy + xᵀBy + cᵀy + Σ a log cosh(ky)/k² + ½Σ r σ(x) y²
    f = ½τ‖x − e‖² + Σ p log(1 + eʸ) + Σ u (1 − exp(−½(y − t)²)) + kink·Σ|x|

log cosh adds curvature near y = 0 only: there μ looks like λ_min(H) + a. σ(x) makes the curvature depend on x. The
well in f is flat far from t and curved near it. The kink is zero unless a test sets it. All terms of f are ≥ 0, and
λ_min(H) is a valid μ everywhere.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl

SIZE = 3
KINDS = ("quadratic", "log cosh", "curvature of x", "flat", "everything")


class Inner(NamedTuple):
    H: Any
    B: Any
    c: Any
    a: Any
    k: Any
    r: Any


class Outer(NamedTuple):
    tau: Any
    e: Any
    p: Any
    u: Any
    t: Any
    kink: Any


def g(x, y, b):
    bump = jnp.sum(b.a * (jnp.logaddexp(b.k * y, -b.k * y) - jnp.log(2.0)) / b.k**2)
    return 0.5 * y @ b.H @ y + x @ b.B @ y + b.c @ y + bump + 0.5 * jnp.sum(b.r * jax.nn.sigmoid(x) * y * y)


def f(x, y, b):
    well = jnp.sum(b.u * -jnp.expm1(-0.5 * (y - b.t) ** 2))
    return (
        0.5 * b.tau * jnp.sum((x - b.e) ** 2)
        + jnp.sum(b.p * jax.nn.softplus(y))
        + well
        + b.kink * jnp.sum(jnp.abs(x))
    )


PROBLEM = bl.Problem(outer=f, inner=g)


def draw(kind, seed):
    """An instance: its data, x0, y0 and μ."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    mu, L = 10 ** rng.uniform(-1.3, -0.3), 1.0
    Q, U, V = (np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0] for _ in range(3))
    every = kind == "everything"
    hidden = kind == "log cosh" or every
    high = mu if hidden else L  # log cosh: the rest of the curvature is there near zero alone
    spectrum = np.concatenate([[mu, high], rng.uniform(mu, high, SIZE - 2)])
    inner = Inner(
        H=Q * spectrum @ Q.T,
        B=U * (rng.uniform(0.1, 1, SIZE)) @ V,
        c=rng.normal(size=SIZE) * (not hidden),
        a=np.full(SIZE, (L - mu) * hidden),
        k=np.full(SIZE, 10 ** rng.uniform(-0.3, 0.3)),
        r=rng.uniform(0, 2, SIZE) * (kind == "curvature of x" or every),
    )
    outer = Outer(
        tau=np.asarray(10 ** rng.uniform(-2, 0)),
        e=rng.normal(size=SIZE) * 3,
        p=rng.uniform(0, 1, SIZE) * (kind != "flat"),
        u=rng.uniform(0.5, 2, SIZE) * (kind == "flat" or every),
        t=rng.normal(size=SIZE),
        kink=np.asarray(0.0),
    )
    x0 = np.zeros(SIZE) if hidden else rng.normal(size=SIZE) * (3.0 if kind == "flat" else 1.0)
    y0 = np.zeros(SIZE) if hidden else rng.normal(size=SIZE)
    as_jax = lambda tree: jax.tree.map(jnp.asarray, tree)
    return bl.Batch(inner=as_jax(inner), outer=as_jax(outer)), jnp.asarray(x0), jnp.asarray(y0), mu


def steep():
    """The curvature is 1 at the start, and 0.05 where x is pulled to: data, x0, y0 and μ."""
    one, none, identity = jnp.ones(SIZE), jnp.zeros(SIZE), jnp.eye(SIZE)
    inner = Inner(H=0.05 * identity, B=-identity, c=none, a=0.95 * one, k=one, r=none)
    outer = Outer(tau=jnp.asarray(0.5, float), e=5 * one, p=one, u=none, t=none, kink=jnp.asarray(0.0, float))
    return bl.Batch(inner=inner, outer=outer), none, none, 0.05
