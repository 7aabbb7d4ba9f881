"""Hypergradient at one point, ITD's bias there, and the curvature of Φ, by conjugate gradients.

With H = ∇²_yy g + λI (λ ≥ 0 a damping), C = ∇²_xy g and all derivatives at the given (x, y):

    v = H⁻¹∇_y f      ∇Φ = ∇_x f − Cv      ITD's bias = C(I − αH)H⁻¹∇_y f = C(v − α∇_y f)
    ∇²Φ·u = D(∇_x f − Cv)[u, ẏ] − C H⁻¹ D(∇_y f − Hv)[u, ẏ]      ẏ = −H⁻¹Cᵀu, v held fixed under D

They are exact if y is y*(x) and λ = 0.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.solvers.rules import Descent, projected
from bilevel.theory.estimation.local_constants import spectrum
from bilevel.types import PyTree, Scalar

SMALL = 1024  # inner variables up to which CG may take four steps per variable
CG_STEPS = 200  # the most for more variables


class Stationarity(NamedTuple):
    """Norms at one point: how stationary it is, and how biased ITD is there."""

    value: Scalar  # f(x, y)
    inner_gradient: Scalar  # ‖∇_y g‖, zero at y*(x)
    hypergradient: Scalar  # ‖∇Φ‖, or the gradient mapping's norm if x is projected
    bias: Scalar  # ‖C(I − αH)H⁻¹∇_y f‖
    adjoint: Scalar  # ‖v‖
    residual: Scalar  # ‖Hv − ∇_y f‖/‖∇_y f‖
    rounding: Scalar  # error bound of bias and hypergradient, from the size of their parts
    smoothness: Scalar  # largest |eigenvalue| of ∇²Φ that was found

    @property
    def bias_share(self) -> float:
        """Return ITD's bias as a share of ‖∇Φ‖; zero where it is only rounding."""
        bias, rounding = float(self.bias), float(self.rounding)
        return 0.0 if bias <= rounding else bias / max(float(self.hypergradient), rounding)


def measure_stationarity(
    problem: Problem,
    steps: int,
    project: Callable[[PyTree], PyTree] | None,
    x: PyTree,
    y: PyTree,
    data: Batch | None,
    alpha: Any,
    damping: Any,
    key: Array | None,
    smoothness: Any = None,
) -> Stationarity:
    """Return the quantities at (x, y); the curvature of Φ, unless given, takes `steps` Lanczos steps."""
    oracles = problem.oracles
    inner, f = oracles.linearize(x, y, data), oracles.outer_gradients(x, y, data)
    H = lambda v: tree.add_scale(inner.hessian(v), damping, v)
    # Single precision cannot reach a smaller residual.
    double = f.value.dtype == jnp.float64
    solve = lambda b, tol: cg(H, b, tol=tol, maxiter=most_cg_steps(y))[0]
    v = solve(f.y, 1e-10 if double else 1e-5)
    pulled = inner.cross(v)
    estimate = tree.sub(f.x, pulled)

    def stationarity(x, y):
        f, g = oracles.outer_gradients(x, y, data), oracles.linearize(x, y, data)
        return tree.sub(f.x, g.cross(v)), tree.sub(f.y, g.hessian(v))

    def curvature_of_value(u):
        response = tree.scale(-1, solve(jax.linear_transpose(inner.cross, y)(u)[0], 1e-4))
        direct, residual = jax.jvp(stationarity, (x, y), (u, response))[1]
        return tree.sub(direct, inner.cross(solve(residual, 1e-4)))

    if smoothness is None:
        assert key is not None
        smoothness = jnp.max(jnp.abs(spectrum(curvature_of_value, x, key, steps).values))
    rule = Descent(1.0) if project is None else projected(1 / smoothness, project)
    return Stationarity(
        value=f.value,
        inner_gradient=tree.norm(inner.gradient),
        hypergradient=rule.stationarity(x, estimate),
        bias=tree.norm(inner.cross(tree.add_scale(v, -alpha, f.y))),
        adjoint=tree.norm(v),
        residual=tree.norm(tree.sub(H(v), f.y)) / jnp.maximum(tree.norm(f.y), jnp.finfo(f.value.dtype).tiny),
        rounding=(1e-9 if double else 1e-4) * (tree.norm(f.x) + tree.norm(pulled)),
        smoothness=smoothness,
    )


def most_cg_steps(y: PyTree) -> int:
    """Return the most CG steps for a linear system in y."""
    size = sum(leaf.size for leaf in jax.tree.leaves(y))
    return 4 * size + 20 if size <= SMALL else CG_STEPS
