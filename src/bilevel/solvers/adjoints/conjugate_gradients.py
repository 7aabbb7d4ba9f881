"""Conjugate gradients through lineax, warm-started, with the residual it really leaves."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from optax import tree

from bilevel.checks import check_count, check_positive
from bilevel.oracles import Linearised
from bilevel.solvers.adjoints.base import Adjoint, residual
from bilevel.solvers.adjoints.nystrom_sketch import Nystrom, check_preconditioner
from bilevel.solvers.ingredients.trees import scaled
from bilevel.types import Number, PyTree


class ConjugateGradients(Adjoint):
    tol: Number
    max_steps: int | None = eqx.field(static=True)
    preconditioner: Nystrom | None = None
    name: ClassVar[str] = "CG"

    def solve(self, inner: Linearised, b: PyTree, v: PyTree, memory: PyTree):
        P = None if self.preconditioner is None else self.preconditioner.inverse(inner, b)
        v, taken = conjugate_gradients(inner, b, v, scaled(self.tol, tree.norm(b)), self.max_steps, P)
        left = tree.norm(residual(inner, b, v))
        return v, memory, {"adjoint_residual": left, "adjoint_steps": taken}


def cg(
    tol: Number = 1e-6, max_steps: int | None = None, *, preconditioner: Nystrom | None = None
) -> ConjugateGradients:
    """Conjugate gradients from the last v̂ until ‖∇²_yy g·v − b‖ ≤ tol·‖b‖ (Grazzi et al. 2020, Ji et al. 2021).

    At least one step is taken, so that with warm starts even a loose tolerance leaves no bias in the limit.
    Needs ∇²_yy g positive definite; for an indefinite one take [`minres`][bilevel.solvers.adjoints.minres], or make it
    definite with [`damped`][bilevel.adjoints.damped] or [`gauss_newton`][bilevel.adjoints.gauss_newton].
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
    preconditioner: Callable[[PyTree], PyTree] | None = None,
) -> tuple[PyTree, jax.Array]:
    """(v, the number of steps taken) with ‖∇²_yy g·v − b‖ ≤ atol, unless `max_steps` came first.

    A preconditioner is a symmetric positive definite approximation of (∇²_yy g)⁻¹, up to a factor.
    """
    # lineax takes curvature pᵀHp below 200·ε·size·‖p‖² for zero and answers NaN: in float32 that is any
    # curvature below 5 where y has 200,000 entries. The system is scaled up to lift it above that; by a
    # power of two, which changes no digit of any iterate.
    size = sum(leaf.size for leaf in jax.tree.leaves(b))
    scale = 2.0 ** math.ceil(math.log2(256 * size))
    as_operator = lambda product: lx.FunctionLinearOperator(
        product, jax.eval_shape(lambda: b), lx.positive_semidefinite_tag
    )
    operator, options = as_operator(lambda p: tree.scale(scale, inner.hessian(p))), {"y0": v}
    if preconditioner is not None:
        options["preconditioner"] = as_operator(preconditioner)
    tiny = jnp.finfo(jnp.result_type(*jax.tree.leaves(b))).tiny  # b = 0 must not divide 0 by 0
    solver = lx.CG(
        rtol=0.0, atol=scale * (atol + tiny), norm=tree.norm, stabilise_every=None, max_steps=max_steps
    )
    solution = lx.linear_solve(operator, tree.scale(scale, b), solver, options=options, throw=False)
    return solution.value, solution.stats["num_steps"]
