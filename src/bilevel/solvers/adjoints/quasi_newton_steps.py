"""Quasi-Newton steps on the adjoint system (qNBO, Fang et al. 2025), curvature remembered between outer steps."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count
from bilevel.oracles import Linearised
from bilevel.solvers.adjoints.base import Adjoint, curvature_along, residual
from bilevel.solvers.ingredients.trees import divide
from bilevel.types import PyTree


class Pairs(NamedTuple):
    """The last curvature pairs, newest first; an empty place has weight 0."""

    s: PyTree  # steps of v, stacked
    z: PyTree  # ∇²_yy g·s, stacked
    weight: jax.Array  # 1 / sᵀz


class QuasiNewton(Adjoint):
    steps: int = eqx.field(static=True)
    memory: int = eqx.field(static=True)
    name: ClassVar[str] = "quasi-Newton"

    def init(self, v: PyTree) -> Pairs:
        empty = jax.tree.map(lambda leaf: jnp.zeros((self.memory, *leaf.shape), leaf.dtype), v)
        return Pairs(empty, empty, jnp.zeros(self.memory, jnp.result_type(*jax.tree.leaves(v))))

    def solve(self, inner: Linearised, b: PyTree, v: PyTree, memory: Pairs):
        def step(carry, _):
            v, r, pairs = carry
            d = _inverse_times(pairs, r)
            h = inner.hessian(d)
            t = divide(tree.vdot(r, d), curvature_along(d, h))
            s, z = tree.scale(-t, d), tree.scale(-t, h)
            return (tree.add(v, s), tree.add(r, z), _remember(pairs, s, z)), None

        (v, r, pairs), _ = lax.scan(step, (v, residual(inner, b, v), memory), length=self.steps)
        return v, pairs, {"adjoint_residual": tree.norm(r)}


def quasi_newton(steps: int = 1, memory: int = 10) -> QuasiNewton:
    """Q limited-memory BFGS steps from the last v̂, each to the minimum along its direction:

        r = ∇²_yy g·v − b,   d = B r,   t = rᵀd / dᵀ∇²_yy g·d,   v ← v − t d,   r ← r − t ∇²_yy g·d

    B ≈ (∇²_yy g)⁻¹ is built by the two-loop recursion from the last pairs (s, ∇²_yy g·s), kept from
    one outer step to the next: while the Hessian hardly changes, B keeps improving. Q + 1 Hessian products;
    "adjoint_residual" costs none. A direction without positive curvature is not followed.

    This is the second subroutine of qNBO (BFGS), quasi-Newton steps on the adjoint system itself. It differs
    from the publication in that pairs come from Hessian products, not from gradient differences, which makes
    the minimising t free; and in that the inner level brings its own rule: for the published inner
    level, quasi-Newton too, give `aid` an inner rule such as `optax.scale_by_lbfgs` and several inner steps.

    Args:
        steps: Q, the number of steps.
        memory: the number of pairs remembered.
    """
    return QuasiNewton(
        check_count(steps, "the number of quasi-Newton steps"), check_count(memory, "the quasi-Newton memory")
    )


def _remember(pairs: Pairs, s: PyTree, z: PyTree) -> Pairs:
    sz, limits = jnp.asarray(tree.vdot(s, z)), jnp.finfo(pairs.weight.dtype)
    useful = sz > limits.tiny / limits.eps  # else 1/sᵀz overflows
    push = lambda old, new: jnp.where(useful, jnp.concatenate([new[None], old[:-1]]), old)
    weight = 1 / jnp.where(useful, sz, 1)
    return Pairs(jax.tree.map(push, pairs.s, s), jax.tree.map(push, pairs.z, z), push(pairs.weight, weight))


def _inverse_times(pairs: Pairs, r: PyTree) -> PyTree:
    """The two-loop recursion (Nocedal & Wright, Algorithm 7.4) from γI, γ = sᵀz/zᵀz of the newest pair."""

    def newest_to_oldest(q, pair):
        a = pair.weight * tree.vdot(pair.s, q)
        return tree.add_scale(q, -a, pair.z), a

    def oldest_to_newest(d, pair_and_a):
        pair, a = pair_and_a
        return tree.add_scale(d, a - pair.weight * tree.vdot(pair.z, d), pair.s), None

    q, a = lax.scan(newest_to_oldest, r, pairs)
    newest = jax.tree.map(lambda stacked: stacked[0], pairs)
    zz = newest.weight * tree.vdot(newest.z, newest.z)
    gamma = jnp.where(zz > 0, divide(1, zz), 1)  # the identity while nothing is remembered
    d = tree.scale(gamma, q)
    return lax.scan(oldest_to_newest, d, (pairs, a), reverse=True)[0]
