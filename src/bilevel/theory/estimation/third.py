"""The largest third derivatives of g at one point, by the higher-order power method."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.types import PyTree, Scalar

STARTS = 4  # of each search


class Slopes(NamedTuple):
    """The largest T(d, v, u) = ⟨u, d/dt B(z + td)·v⟩ found over unit vectors, with B = (∇²_xy g, ∇²_yy g)."""

    rho_yyy: Scalar  # d in y, u in y: the slope of ∇²_yy g in y
    rho_xyy: Scalar  # d in x, u in y: of ∇²_yy g in x, which is that of ∇²_xy g in y
    rho_xxy: Scalar  # d in x, u in x: of ∇²_xy g in x
    hessian: Scalar  # d in both, u in y: of ∇²_yy g jointly
    cross: Scalar  # d in both, u in x: of ∇²_xy g jointly


KEPT = [  # of d and of u: their parts in x and in y
    ((0.0, 1.0), (0.0, 1.0)),
    ((1.0, 0.0), (0.0, 1.0)),
    ((1.0, 0.0), (1.0, 0.0)),
    ((1.0, 1.0), (0.0, 1.0)),
    ((1.0, 1.0), (1.0, 0.0)),
]


def largest_slopes(
    problem: Problem, x: PyTree, y: PyTree, data: Batch | None, direction: PyTree, key: Array, steps: int
) -> Slopes:
    """T is linear in each of its arguments, so each in turn is set to the normalized gradient of T in it.

    That maximizes T over the argument and never lowers it. It may end in a local maximum, so it is started `STARTS`
    times: once with d in the given direction, then in random ones.
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
            u = unit(jax.grad(form, argnums=2)(d, v, u))
            v = unit(jax.grad(form, argnums=1)(d, v, u))
            d = unit(jax.grad(form, argnums=0)(d, v, u))
            return d, v, u

        def climb(start: Array) -> Scalar:
            first, second = jax.random.split(jax.random.fold_in(key, start))
            given, drawn = unit(keep(0, direction)), unit(keep(0, random_unit((x, y), first)))
            d = jax.tree.map(lambda a, b: jnp.where(start == 0, a, b), given, drawn)
            factors = lax.fori_loop(0, steps, ascend, (d, random_unit(y, second), tree.zeros_like((x, y))))
            return jnp.abs(form(*factors))

        return jnp.max(lax.map(climb, jnp.arange(STARTS)))

    return Slopes(*lax.map(largest, jnp.asarray(KEPT)))


def _times(c: Array, a: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: c.astype(leaf.dtype) * leaf, a)


def unit(a: PyTree) -> PyTree:
    size = tree.norm(a)
    return tree.scale(1 / jnp.maximum(size, jnp.finfo(size.dtype).tiny), a)


def random_unit(like: PyTree, key: Array) -> PyTree:
    flat, unravel = ravel_pytree(like)
    return unit(unravel(jax.random.normal(key, flat.shape, flat.dtype)))
