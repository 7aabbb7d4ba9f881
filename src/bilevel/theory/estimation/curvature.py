"""The quantities that μ, L, M and ρ bound, at one point (x, y): all from products, none from matrices."""

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
from bilevel.theory.estimation.lanczos import lanczos
from bilevel.types import PyTree, Scalar

STARTS = 4  # of the search for the largest third derivative


class Curvature(NamedTuple):
    """At one point. Every entry but `inner_low` is at most the true norm there; `inner_low` is at least λ_min."""

    inner_low: Scalar  # smallest eigenvalue of ∇²_yy g
    inner_high: Scalar  # and its largest
    inner_joint: Scalar  # ‖(∇²_xy g, ∇²_yy g)‖, the slope of ∇_y g in (x, y)
    outer_joint: Scalar  # ‖∇²f‖ in (x, y)
    slope: Scalar  # ‖∇f‖
    slope_y: Scalar  # ‖∇_y f‖
    third: Scalar  # the larger slope of ∇²_yy g and ∇²_xy g in (x, y)


def curvature(
    problem: Problem, x: PyTree, y: PyTree, data: Batch | None, direction: PyTree, key: Array, steps: int
) -> Curvature:
    """The local constants; `direction`, a pair (ẋ, ẏ), is where the search for the third derivative begins."""
    keys = jax.random.split(key, 4)
    low_to_high = spectrum(problem.oracles.linearise(x, y, data).hessian, y, keys[0], steps)
    f = problem.oracles.outer_gradients(x, y, data)
    return Curvature(
        inner_low=low_to_high[0],
        inner_high=low_to_high[-1],
        inner_joint=_inner_joint(problem, x, y, data, keys[1], steps),
        outer_joint=jnp.max(jnp.abs(spectrum(_outer_product(problem, x, y, data), (x, y), keys[2], steps))),
        slope=tree.norm((f.x, f.y)),
        slope_y=tree.norm(f.y),
        third=_third(
            problem, x, y, data, direction, keys[3], -(-steps // 3)
        ),  # it converges faster than Lanczos
    )


def spectrum(product: Callable[[PyTree], PyTree], like: PyTree, key: Array, steps: int) -> Float[Array, " k"]:
    """Ritz values of a symmetric operator on trees shaped like `like`, from a random start."""
    flat, unravel = ravel_pytree(like)
    start = jax.random.normal(key, flat.shape, flat.dtype)
    return lanczos(lambda v: ravel_pytree(product(unravel(v)))[0], start, steps, jax.random.fold_in(key, 1))


def _inner_joint(problem: Problem, x, y, data, key, steps) -> Scalar:
    """The largest singular value of v ↦ (∇²_xy g·v, ∇²_yy g·v)."""
    inner = problem.oracles.linearise(x, y, data)
    forward = lambda v: (inner.cross(v), inner.hessian(v))
    backward = jax.linear_transpose(forward, y)
    squares = spectrum(lambda v: backward(forward(v))[0], y, key, steps)
    return jnp.sqrt(jnp.maximum(squares[-1], 0))


def _outer_product(problem: Problem, x, y, data) -> Callable[[PyTree], PyTree]:
    """(ẋ, ẏ) ↦ ∇²f·(ẋ, ẏ). Only estimates need the second derivatives of f in x; no solver does."""
    gradients = lambda x, y: tuple(problem.oracles.outer_gradients(x, y, data)[1:])
    return lambda z: jax.jvp(gradients, (x, y), z)[1]


def _third(problem: Problem, x, y, data, direction, key, steps) -> Scalar:
    """The largest T(d, v, u) = ⟨u, d/dt B(z + td)·v⟩ found over unit vectors, for B = ∇²_yy g and B = ∇²_xy g.

    The higher-order power method: T is linear in each of its three arguments, so each in turn is set to the
    normalised gradient of T in it, which maximises T over that argument and never lowers it. It may end in a local
    maximum, so it is started `STARTS` times: once in the given direction, then in random ones.
    """

    def best(block: str, like: PyTree, key) -> Scalar:
        def form(d, v, u):
            product = lambda x, y: getattr(problem.oracles.linearise(x, y, data), block)(v)
            return tree.vdot(u, jax.jvp(product, (x, y), d)[1])

        def ascend(_, factors):
            d, v, u = factors
            u = _unit(jax.grad(form, argnums=2)(d, v, u))
            v = _unit(jax.grad(form, argnums=1)(d, v, u))
            d = _unit(jax.grad(form, argnums=0)(d, v, u))
            return d, v, u

        def climb(start: Array) -> Scalar:
            first, second = jax.random.split(jax.random.fold_in(key, start))
            given, drawn = _unit(direction), random_unit((x, y), first)
            d = jax.tree.map(lambda a, b: jnp.where(start == 0, a, b), given, drawn)
            factors = lax.fori_loop(0, steps, ascend, (d, random_unit(y, second), tree.zeros_like(like)))
            return jnp.abs(form(*factors))

        return jnp.max(lax.map(climb, jnp.arange(STARTS)))

    first, second = jax.random.split(key)
    return jnp.maximum(best("hessian", y, first), best("cross", x, second))


def _unit(a: PyTree) -> PyTree:
    size = tree.norm(a)
    return tree.scale(1 / jnp.maximum(size, jnp.finfo(size.dtype).tiny), a)


def random_unit(like: PyTree, key: Array) -> PyTree:
    flat, unravel = ravel_pytree(like)
    return _unit(unravel(jax.random.normal(key, flat.shape, flat.dtype)))
