"""MINRES (Paige & Saunders 1975). lineax has no MINRES, so this one is ours."""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count, check_positive
from bilevel.oracles import Linearised
from bilevel.solvers.adjoints.base import Adjoint, residual
from bilevel.solvers.ingredients.trees import divide, scaled
from bilevel.types import Number, PyTree, Scalar


class Lanczos(NamedTuple):
    v: PyTree  # the iterate
    q: PyTree  # Lanczos vectors q_j, q_{j−1}
    q_before: PyTree
    w: PyTree  # search directions w_{j−1}, w_{j−2}
    w_before: PyTree
    beta: Scalar  # ‖q_j‖ before it was normalised
    rotation: tuple[Scalar, Scalar, Scalar, Scalar]  # the last two Givens rotations: c, s, c_before, s_before
    eta: Scalar  # |η| is the residual's norm
    step: jax.Array


class MinimalResiduals(Adjoint):
    tol: Number
    max_steps: int | None = eqx.field(static=True)
    name: ClassVar[str] = "MINRES"

    def solve(self, inner: Linearised, b: PyTree, v: PyTree, memory: PyTree):
        size = sum(leaf.size for leaf in jax.tree.leaves(b))
        end = _iterate(inner, b, v, scaled(self.tol, tree.norm(b)), self.max_steps or 10 * size)
        left = tree.norm(residual(inner, b, end.v))
        return end.v, memory, {"adjoint_residual": left, "adjoint_steps": end.step}


def minres(tol: Number = 1e-6, max_steps: int | None = None) -> MinimalResiduals:
    """Minimal residuals from the last v̂ until ‖∇²_yy g·v − b‖ ≤ tol·‖b‖.

    Of all v̂ + Krylov(∇²_yy g, r₀) it takes the one with the smallest residual, so the residual never
    grows, and ∇²_yy g need not be positive definite: the choice for an inner problem that is not convex
    (y then tracks a stationary point of g). On a positive definite Hessian it and
    [`cg`][bilevel.solvers.adjoints.cg] need about the same number of steps.

    Hessian products: 1 for the warm start, 1 a step, of which there is at least one, 1 to measure
    the "adjoint_residual" it leaves.

    Args:
        tol: the tolerance, relative to ‖b‖.
        max_steps: the number of steps to stop after; ten times the size of y if left out.
    """
    check_positive(tol, "tolerance tol")
    return MinimalResiduals(tol, None if max_steps is None else check_count(max_steps, "max_steps"))


def _iterate(inner: Linearised, b: PyTree, v: PyTree, atol: Any, max_steps: int) -> Lanczos:
    def advance(now: Lanczos) -> Lanczos:
        # Lanczos: H q_j = β_j q_{j−1} + α_j q_j + β_{j+1} q_{j+1}
        p = tree.add_scale(inner.hessian(now.q), -now.beta, now.q_before)
        alpha = jnp.asarray(tree.vdot(now.q, p))
        p = tree.add_scale(p, -alpha, now.q)
        beta = tree.norm(p)

        # QR of the tridiagonal matrix, one column further
        c, s, c_before, s_before = now.rotation
        diagonal = c * alpha - c_before * s * now.beta
        above = s * alpha + c_before * c * now.beta
        two_above = s_before * now.beta
        pivot = jnp.hypot(diagonal, beta)
        c_next, s_next = divide(diagonal, pivot), divide(beta, pivot)

        w = tree.add_scale(tree.add_scale(now.q, -two_above, now.w_before), -above, now.w)
        w = tree.scale(divide(jnp.ones_like(pivot), pivot), w)
        return Lanczos(
            v=tree.add_scale(now.v, c_next * now.eta, w),
            q=tree.scale(divide(jnp.ones_like(beta), beta), p),
            q_before=now.q,
            w=w,
            w_before=now.w,
            beta=beta,
            rotation=(c_next, s_next, c, s),
            eta=-s_next * now.eta,
            step=now.step + 1,
        )

    def unfinished(now: Lanczos):
        left = jnp.abs(now.eta)
        return ((left > atol) | (now.step == 0)) & (left > 0) & (now.step < max_steps)

    r = tree.scale(-1, residual(inner, b, v))
    norm, zeros = tree.norm(r), tree.zeros_like(v)
    one, zero = jnp.ones_like(norm), jnp.zeros_like(norm)
    q = tree.scale(divide(one, norm), r)
    start = Lanczos(v, q, zeros, zeros, zeros, zero, (one, zero, one, zero), norm, jnp.int32(0))
    return lax.while_loop(unfinished, advance, start)
