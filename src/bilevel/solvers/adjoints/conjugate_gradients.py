"""Conjugate gradients with a warm start, and their true residual."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from optax import tree

from bilevel.checks import check_count, check_positive
from bilevel.oracles import Curvature
from bilevel.solvers.adjoints.base import INDEFINITE, Adjoint, residual
from bilevel.solvers.adjoints.nystrom_sketch import Nystrom, check_preconditioner
from bilevel.solvers.parts.trees import all_finite, nan_unless, scaled
from bilevel.solvers.parts.truncated_cg import truncated_cg
from bilevel.types import Metrics, Number, PyTree


class ConjugateGradients(Adjoint):
    tol: Number
    max_steps: int | None = eqx.field(static=True)
    preconditioner: Nystrom | None = None
    name: ClassVar[str] = "CG"

    def solve(self, inner: Curvature, b: PyTree, v: PyTree, memory: PyTree) -> tuple[PyTree, PyTree, Metrics]:
        inner = inner.shared()
        P = (lambda r: r) if self.preconditioner is None else self.preconditioner.inverse(inner, b)
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
    check_positive(tol, "tolerance tol")
    steps = None if max_steps is None else check_count(max_steps, "max_steps")
    return ConjugateGradients(tol, steps, check_preconditioner(preconditioner))


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
    most = 10 * sum(leaf.size for leaf in jax.tree.leaves(b)) if max_steps is None else max_steps
    left = tree.scale(-1, residual(inner, b, v))
    found = truncated_cg(inner.hessian, left, atol, most, at_least=1, preconditioner=preconditioner)
    fine = all_finite(left) & ~jnp.isnan(found.curvature)
    return nan_unless(fine, tree.add(v, found.solution)), found.products, found.flat & fine
