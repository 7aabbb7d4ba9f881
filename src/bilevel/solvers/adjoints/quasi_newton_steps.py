"""Quasi-Newton steps on the adjoint system (qNBO, Fang et al. 2025), with curvature from earlier outer steps."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count
from bilevel.oracles import Curvature
from bilevel.solvers.adjoints.base import Adjoint, residual
from bilevel.solvers.parts.newton import curvature_along
from bilevel.solvers.parts.trees import all_finite, divide
from bilevel.types import Metrics, PyTree


class Pairs(NamedTuple):
    """Last pairs of limited-memory BFGS, newest first; an empty place has weight 0."""

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


class QuasiNewton(Adjoint):
    steps: int = eqx.field(static=True)
    memory: int = eqx.field(static=True)
    name: ClassVar[str] = "quasi-Newton"

    def init(self, v: PyTree) -> Pairs:
        return no_pairs(v, self.memory)

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: Pairs) -> tuple[PyTree, PyTree, Metrics]:
        inner = inner.shared()

        def step(carry, _):
            v, r, pairs = carry
            d = inverse_times(pairs, r)
            h = inner.hessian(d)
            t = divide(tree.vdot(r, d), curvature_along(d, h))
            t = jnp.where(all_finite((r, h)), jnp.where(tree.norm(r) > least, t, 0), jnp.nan)
            s, z = tree.scale(-t, d), tree.scale(-t, h)
            return (tree.add(v, s), tree.add(r, z), remember(pairs, s, z)), None

        size = tree.norm(b)
        least = 64 * float(jnp.finfo(size.dtype).eps) * size  # a smaller residual is rounding
        (v, r, pairs), _ = lax.scan(step, (v, residual(inner, b, v), memory), length=self.steps)
        return v, pairs, {"adjoint_residual": tree.norm(r)}


def quasi_newton(steps: int = 1, memory: int = 10) -> QuasiNewton:
    """Take Q limited-memory BFGS steps from the last v̂, each to the minimum along its direction:

        r = ∇²_yy g·v − b,   d = B r,   t = rᵀd / dᵀ∇²_yy g·d,   v ← v − t d,   r ← r − t ∇²_yy g·d

    The two-loop recursion builds B ≈ (∇²_yy g)⁻¹ from the last pairs (s, ∇²_yy g·s). They are kept from one
    outer step to the next: while the Hessian hardly changes, B keeps improving. It takes Q + 1 Hessian
    products; "adjoint_residual" costs none. It does not follow a direction without positive curvature.

    This is the second subroutine of qNBO (BFGS). The pairs come from Hessian products instead of gradient
    differences, so the minimizing t costs nothing. The inner level has a separate rule and does not share the
    curvature. For both subroutines and one set of pairs use `bl.solvers.qnbo`. For quasi-Newton steps only at
    the inner level use the rule `optax.chain(optax.scale_by_lbfgs(), optax.scale(-0.5))` and several inner
    steps. The second part has optax's minus sign.

    Args:
        steps: Q, the number of steps.
        memory: the number of pairs to store.
    """
    return QuasiNewton(
        check_count(steps, "the number of quasi-Newton steps"), check_count(memory, "the quasi-Newton memory")
    )
