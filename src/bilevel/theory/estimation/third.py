"""The largest third derivatives of g at one point, by the higher-order power method."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.types import PyTree, Scalar

STARTS = 4  # of each search


def largest_slopes(
    problem: Problem,
    block: str,
    along: list[tuple[float, float]],
    x: PyTree,
    y: PyTree,
    data: Batch | None,
    direction: PyTree,
    key: Array,
    steps: int,
) -> Float[Array, " rows"]:
    """How steep `block`, "hessian" (∇²_yy g) or "cross" (∇²_xy g), is along x, along y, or along both.

    `along` has a row (1, 0), (0, 1) or (1, 1) for each answer. An answer is the largest
    T(d, v, u) = ⟨u, d/dt B(z + td)·v⟩ found over unit vectors with d of that kind. T is linear in each of its three
    arguments, so each in turn is set to the normalised gradient of T in it, which maximises T over that argument and
    never lowers it. It may end in a local maximum, so it is started `STARTS` times: once in the given direction, then
    in random ones.
    """
    image = y if block == "hessian" else x

    def largest(row: Array) -> Scalar:
        keep = lambda d: tuple(_times(c, part) for c, part in zip(row, d, strict=True))

        def form(d, v, u):
            product = lambda x, y: getattr(problem.oracles.linearise(x, y, data), block)(v)
            return tree.vdot(u, jax.jvp(product, (x, y), keep(d))[1])

        def ascend(_, factors):
            d, v, u = factors
            u = unit(jax.grad(form, argnums=2)(d, v, u))
            v = unit(jax.grad(form, argnums=1)(d, v, u))
            d = unit(jax.grad(form, argnums=0)(d, v, u))
            return d, v, u

        def climb(start: Array) -> Scalar:
            first, second = jax.random.split(jax.random.fold_in(key, start))
            given, drawn = unit(keep(direction)), unit(keep(random_unit((x, y), first)))
            d = jax.tree.map(lambda a, b: jnp.where(start == 0, a, b), given, drawn)
            factors = lax.fori_loop(0, steps, ascend, (d, random_unit(y, second), tree.zeros_like(image)))
            return jnp.abs(form(*factors))

        return jnp.max(lax.map(climb, jnp.arange(STARTS)))

    return lax.map(largest, jnp.asarray(along))


def _times(c: Array, a: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: c.astype(leaf.dtype) * leaf, a)


def unit(a: PyTree) -> PyTree:
    size = tree.norm(a)
    return tree.scale(1 / jnp.maximum(size, jnp.finfo(size.dtype).tiny), a)


def random_unit(like: PyTree, key: Array) -> PyTree:
    flat, unravel = ravel_pytree(like)
    return unit(unravel(jax.random.normal(key, flat.shape, flat.dtype)))
