"""Krylov methods with a warm start and their true residual: conjugate gradients, and MINRES (Paige & Saunders 1975).

lineax has no MINRES. Why its conjugate gradients are not used: see `parts.newton`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count, check_positive
from bilevel.oracles import Curvature
from bilevel.solvers.adjoints.base import INDEFINITE, Adjoint, residual
from bilevel.solvers.adjoints.nystrom_sketch import Nystrom
from bilevel.solvers.parts.newton import truncated_cg
from bilevel.solvers.parts.trees import all_finite, divide, dot, nan_unless, scaled, select
from bilevel.types import Metrics, Number, PyTree, Scalar
from bilevel.words import shown


class KrylovMethod(Adjoint):
    tol: Number
    max_steps: int | None = eqx.field(static=True)
    preconditioner: Nystrom | None = None

    def inverse(self, inner: Curvature, b: PyTree) -> Callable[[PyTree], PyTree]:
        """Return the preconditioner r ↦ P r; the identity without one."""
        return (lambda r: r) if self.preconditioner is None else self.preconditioner.inverse(inner, b)


def _checked(tol: Number, max_steps: int | None, preconditioner: Nystrom | None) -> tuple[Any, ...]:
    check_positive(tol, "tolerance tol")
    steps = None if max_steps is None else check_count(max_steps, "max_steps")
    if preconditioner is not None and not isinstance(preconditioner, Nystrom):
        raise TypeError(
            f"preconditioner must be adjoints.nystrom(rank, damping) or None, not {shown(preconditioner)}"
        )
    return tol, steps, preconditioner


def _size(b: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(b))


class ConjugateGradients(KrylovMethod):
    name: ClassVar[str] = "CG"

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        inner = inner.shared()
        P = self.inverse(inner, b)
        v, taken, flat = conjugate_gradients(inner, b, v, scaled(self.tol, tree.norm(b)), self.max_steps, P)
        left = tree.norm(residual(inner, b, v))
        return v, memory, {"adjoint_residual": left, "adjoint_steps": taken, INDEFINITE: flat}


def cg(
    tol: Number = 1e-6, max_steps: int | None = None, *, preconditioner: Nystrom | None = None
) -> ConjugateGradients:
    """Run conjugate gradients from the last v̂ until ‖∇²_yy g·v − b‖ ≤ tol·‖b‖.

    Grazzi et al. 2020, Ji et al. 2021. The method takes at least one step, so that with warm starts even a
    loose tolerance leaves no bias in the limit. ∇²_yy g must be positive definite. The method stops at the
    first direction without positive curvature and returns the current v. For an indefinite ∇²_yy g use
    `bl.adjoints.minres`, or make it definite with `bl.adjoints.damped` or `bl.adjoints.gauss_newton`. The
    trace's "adjoint_indefinite" shows these steps. The run's status reports them if they are most of the last
    steps. Hessian products: 1 for the warm start, 1 per step, 1 to measure "adjoint_residual", and the
    preconditioner's.

    Args:
        tol: the tolerance, relative to ‖b‖.
        max_steps: the maximal number of steps; the default is ten times the size of y.
        preconditioner: `bl.adjoints.nystrom(rank, damping)`, computed again at every solve.
    """
    return ConjugateGradients(*_checked(tol, max_steps, preconditioner))


def conjugate_gradients(
    inner: Curvature,
    b: PyTree,
    v: PyTree,
    atol: Any,
    max_steps: int | None,
    preconditioner: Callable[[PyTree], PyTree] = lambda r: r,
) -> tuple[PyTree, jax.Array, jax.Array]:
    """Return (v, the number of steps taken, whether a direction without positive curvature ended them).

    ‖∇²_yy g·v − b‖ ≤ atol, unless `max_steps` or such a direction came first. If b or the curvature is not
    finite, v is not finite either.
    """
    most = 10 * _size(b) if max_steps is None else max_steps
    left = tree.scale(-1, residual(inner, b, v))
    found = truncated_cg(inner.hessian, left, atol, most, at_least=1, preconditioner=preconditioner)
    fine = all_finite(left) & ~jnp.isnan(found.curvature)
    return nan_unless(fine, tree.add(v, found.solution)), found.products, found.flat & fine


class Lanczos(NamedTuple):
    v: PyTree  # the iterate
    q: PyTree  # Lanczos vector q_j = P u_j
    u: PyTree  # its duals u_j, u_{j−1}: the same as q without a preconditioner P
    u_before: PyTree
    w: PyTree  # search directions w_{j−1}, w_{j−2}
    w_before: PyTree
    r: PyTree  # b − H v = η r
    beta: Scalar  # the length √(pᵀPp) of u_j before it was normalized
    rotation: tuple[Scalar, Scalar, Scalar, Scalar]  # the last two Givens rotations: c, s, c_before, s_before
    eta: Scalar
    size: Scalar  # the size of H on the directions so far
    done: jax.Array  # whether H r is zero, so that no v has a smaller residual, or w is rounding
    step: jax.Array


class MinimalResiduals(KrylovMethod):
    name: ClassVar[str] = "MINRES"

    def allows(self, curvature: float) -> bool:
        return True

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        inner = inner.shared()
        P = self.inverse(inner, b)
        start = residual(inner, b, v)
        end = _iterate(inner, start, v, scaled(self.tol, tree.norm(b)), self.max_steps or 10 * _size(b), P)
        left = residual(inner, b, end.v)
        grown = dot(left, P(left)) > dot(start, P(start))  # possible only by rounding
        v, left = select(grown, (v, start), (end.v, left))
        v = nan_unless(all_finite(left), v)  # H or b is not finite
        return v, memory, {"adjoint_residual": tree.norm(left), "adjoint_steps": end.step}


def minres(
    tol: Number = 1e-6, max_steps: int | None = None, *, preconditioner: Nystrom | None = None
) -> MinimalResiduals:
    """Run minimal residuals from the last v̂ until ‖∇²_yy g·v − b‖ ≤ tol·‖b‖.

    From v̂ + Krylov(∇²_yy g, r₀) it takes the v with the smallest residual. So the residual never grows, and
    ∇²_yy g need not be positive definite. Use it for an inner problem that is not convex (y then tracks a
    stationary point of g). On a singular ∇²_yy g it ends at a least-squares solution, up to rounding. On a
    positive definite one it needs about as many steps as `bl.adjoints.cg`.

    Hessian products: 1 for the warm start, 1 per step, with at least one step, 1 to measure
    "adjoint_residual", and the preconditioner's. With a preconditioner P it minimizes √(rᵀPr), which never
    grows; the tolerance is still for ‖r‖.

    Args:
        tol: the tolerance, relative to ‖b‖.
        max_steps: the maximal number of steps; the default is ten times the size of y.
        preconditioner: `bl.adjoints.nystrom(rank, damping)`, computed again at every solve.
    """
    return MinimalResiduals(*_checked(tol, max_steps, preconditioner))


def _iterate(
    inner: Curvature, start: PyTree, v: PyTree, atol: Any, max_steps: int, P: Callable[[PyTree], PyTree]
) -> Lanczos:
    """Iterate from v, where H v − b is `start`."""

    def normalized(p: PyTree) -> tuple[PyTree, PyTree, Scalar]:
        z = P(p)
        beta = jnp.sqrt(jnp.maximum(tree.vdot(p, z), 0))
        by = divide(jnp.ones_like(beta), beta)
        return tree.scale(by, p), tree.scale(by, z), beta

    def advance(now: Lanczos) -> Lanczos:
        # Lanczos: H q_j = β_j u_{j−1} + α_j u_j + β_{j+1} u_{j+1}
        p = tree.add_scale(inner.hessian(now.q), -now.beta, now.u_before)
        alpha = jnp.asarray(tree.vdot(now.q, p))
        u, q, beta = normalized(tree.add_scale(p, -alpha, now.u))

        # QR of the tridiagonal matrix, with one more column
        c, s, c_before, s_before = now.rotation
        diagonal = c * alpha - c_before * s * now.beta
        above = s * alpha + c_before * c * now.beta
        two_above = s_before * now.beta
        pivot = jnp.hypot(diagonal, beta)
        c_next, s_next = divide(diagonal, pivot), divide(beta, pivot)

        w = tree.add_scale(tree.add_scale(now.q, -two_above, now.w_before), -above, now.w)
        w = tree.scale(divide(jnp.ones_like(pivot), pivot), w)

        # ‖H r‖/‖r‖ is √(diagonal² + c²β²). Where it is rounding H is singular, and the next pivot would be noise.
        size = jnp.maximum(now.size, jnp.hypot(alpha, beta))
        eps = jnp.finfo(size.dtype).eps
        least = jnp.hypot(diagonal, c * beta) <= eps**0.75 * size
        # A step lowers the residual by c²/2 of it at most, and its rounding is `noise`·c: H w has length 1.
        noise = eps * size * tree.norm(w)
        done = least | (noise > 0.1)
        along = jnp.where(done | (jnp.abs(c_next) <= 2 * noise), 0, c_next * now.eta)
        return Lanczos(
            v=tree.add_scale(now.v, along, w),
            q=q,
            u=u,
            u_before=now.u,
            w=w,
            w_before=now.w,
            r=tree.add_scale(tree.scale(c_next, u), -s_next, now.r),
            beta=beta,
            rotation=(c_next, s_next, c, s),
            eta=-s_next * now.eta,
            size=size,
            done=done,
            step=now.step + 1,
        )

    def unfinished(now: Lanczos):
        left = jnp.abs(now.eta) * tree.norm(now.r)
        return ((left > atol) | (now.step == 0)) & (left > 0) & ~now.done & (now.step < max_steps)

    u, q, norm = normalized(tree.scale(-1, start))
    zeros, one, zero = tree.zeros_like(v), jnp.ones_like(norm), jnp.zeros_like(norm)
    rotation, never = (one, zero, one, zero), jnp.asarray(False)
    start = Lanczos(v, q, u, zeros, zeros, zeros, u, zero, rotation, norm, zero, never, jnp.int32(0))
    return lax.while_loop(unfinished, advance, start)
