"""Conjugate gradients, warm-started, with the residual they really leave.

They are written out because of what they do with a direction p of no positive curvature, pᵀ∇²_yy g·p ≤ 0 up to
rounding: they stop with what they have. lineax's go on along a negative one and answer NaN on one that is zero.
Networks have the former, and the system of a projected y, whose operator is singular, leads to the latter.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count, check_positive
from bilevel.oracles import Linearised
from bilevel.solvers.adjoints.base import Adjoint, curvature_along, residual
from bilevel.solvers.adjoints.nystrom_sketch import Nystrom, check_preconditioner
from bilevel.solvers.ingredients.trees import divide, scaled
from bilevel.types import Number, PyTree, Scalar


class Search(NamedTuple):
    v: PyTree  # the iterate
    r: PyTree  # b − ∇²_yy g·v
    p: PyTree  # the next direction
    rz: Scalar  # rᵀz, with z the preconditioned r
    flat: jax.Array  # whether the last direction had no positive curvature
    step: jax.Array


class ConjugateGradients(Adjoint):
    tol: Number
    max_steps: int | None = eqx.field(static=True)
    preconditioner: Nystrom | None = None
    name: ClassVar[str] = "CG"

    def solve(self, inner: Linearised, b: PyTree, v: PyTree, memory: PyTree):
        P = (lambda r: r) if self.preconditioner is None else self.preconditioner.inverse(inner, b)
        v, taken = conjugate_gradients(inner, b, v, scaled(self.tol, tree.norm(b)), self.max_steps, P)
        left = tree.norm(residual(inner, b, v))
        return v, memory, {"adjoint_residual": left, "adjoint_steps": taken}


def cg(
    tol: Number = 1e-6, max_steps: int | None = None, *, preconditioner: Nystrom | None = None
) -> ConjugateGradients:
    """Conjugate gradients from the last v̂ until ‖∇²_yy g·v − b‖ ≤ tol·‖b‖ (Grazzi et al. 2020, Ji et al. 2021).

    At least one step is taken, so that with warm starts even a loose tolerance leaves no bias in the limit.
    Needs ∇²_yy g positive definite: it stops at the first direction that has no positive curvature, wherever that
    leaves it. For an indefinite one take [`minres`][bilevel.solvers.adjoints.minres], or make it definite with
    [`damped`][bilevel.adjoints.damped] or [`gauss_newton`][bilevel.adjoints.gauss_newton].
    Hessian products: 1 for the warm start, 1 a step, 1 to measure the "adjoint_residual" it leaves, and those of the
    preconditioner.

    Args:
        tol: the tolerance, relative to ‖b‖.
        max_steps: the number of steps to stop after; ten times the size of y if left out.
        preconditioner: [`nystrom(rank, damping)`][bilevel.adjoints.nystrom], made anew at every solve.
    """
    check_positive(tol, "tolerance tol")
    steps = None if max_steps is None else check_count(max_steps, "max_steps")
    return ConjugateGradients(tol, steps, check_preconditioner(preconditioner))


def conjugate_gradients(
    inner: Linearised,
    b: PyTree,
    v: PyTree,
    atol: Any,
    max_steps: int | None,
    preconditioner: Callable[[PyTree], PyTree] = lambda r: r,
) -> tuple[PyTree, jax.Array]:
    """(v, the number of steps taken) with ‖∇²_yy g·v − b‖ ≤ atol, unless `max_steps` or a flat direction came first.

    A preconditioner is a symmetric positive definite approximation of (∇²_yy g)⁻¹, up to a factor.
    """
    most = 10 * sum(leaf.size for leaf in jax.tree.leaves(b)) if max_steps is None else max_steps

    def advance(now: Search) -> Search:
        image = inner.hessian(now.p)
        curvature = curvature_along(now.p, image)
        t = divide(now.rz, curvature)
        v, r = tree.add_scale(now.v, t, now.p), tree.add_scale(now.r, -t, image)
        z = preconditioner(r)
        rz = jnp.asarray(tree.vdot(r, z))
        p = tree.add_scale(z, divide(rz, now.rz), now.p)
        return Search(v, r, p, rz, curvature == 0, now.step + 1)

    def unfinished(now: Search):
        wanted = (tree.norm(now.r) > atol) | (now.step == 0)
        return wanted & ~now.flat & (now.rz > 0) & (now.step < most)

    r = tree.scale(-1, residual(inner, b, v))
    z = preconditioner(r)
    start = Search(v, r, z, jnp.asarray(tree.vdot(r, z)), jnp.asarray(False), jnp.int32(0))
    end = lax.while_loop(unfinished, advance, start)
    return end.v, end.step
