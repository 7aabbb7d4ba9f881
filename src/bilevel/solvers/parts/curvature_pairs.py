"""Pairs of limited-memory BFGS: a step s, and the Hessian's product with it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.solvers.parts.trees import divide
from bilevel.types import PyTree


class Pairs(NamedTuple):
    """Last curvature pairs, newest first; an empty place has weight 0."""

    s: PyTree  # steps, stacked
    z: PyTree  # ∇²_yy g·s, stacked
    weight: jax.Array  # 1 / sᵀz


def no_pairs(like: PyTree, memory: int) -> Pairs:
    """Return `memory` empty places for pairs."""
    empty = jax.tree.map(lambda leaf: jnp.zeros((memory, *leaf.shape), leaf.dtype), like)
    return Pairs(empty, empty, jnp.zeros(memory, jnp.result_type(*jax.tree.leaves(like))))


def remember(pairs: Pairs, s: PyTree, z: PyTree) -> Pairs:
    """Add (s, z) in front and drop the oldest pair, unless the curvature along s is not positive."""
    sz, limits = jnp.asarray(tree.vdot(s, z)), jnp.finfo(pairs.weight.dtype)
    useful = sz > limits.tiny / limits.eps  # otherwise 1/sᵀz overflows
    push = lambda old, new: jnp.where(useful, jnp.concatenate([new[None], old[:-1]]), old)
    weight = 1 / jnp.where(useful, sz, 1)
    return Pairs(jax.tree.map(push, pairs.s, s), jax.tree.map(push, pairs.z, z), push(pairs.weight, weight))


def inverse_times(pairs: Pairs, r: PyTree) -> PyTree:
    """Return B r with B ≈ (∇²_yy g)⁻¹ of the pairs.

    This is the two-loop recursion (Nocedal & Wright, Algorithm 7.4) from γI. γ = sᵀz/zᵀz of the newest pair.
    It is 1 without pairs.
    """

    def newest_to_oldest(q, pair):
        a = pair.weight * tree.vdot(pair.s, q)
        return tree.add_scale(q, -a, pair.z), a

    def oldest_to_newest(d, pair_and_a):
        pair, a = pair_and_a
        return tree.add_scale(d, a - pair.weight * tree.vdot(pair.z, d), pair.s), None

    q, a = lax.scan(newest_to_oldest, r, pairs)
    newest = jax.tree.map(lambda stacked: stacked[0], pairs)
    zz = newest.weight * tree.vdot(newest.z, newest.z)
    gamma = jnp.where(zz > 0, divide(1, zz), 1)
    d = tree.scale(gamma, q)
    return lax.scan(oldest_to_newest, d, (pairs, a), reverse=True)[0]
