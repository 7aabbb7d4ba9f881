"""Functions that a method descends, for rules that need their values."""

from collections.abc import Callable

import jax.numpy as jnp
from optax import tree

from bilevel.batch import Batch
from bilevel.oracles import Curvature
from bilevel.problem import Problem
from bilevel.types import PyTree, Scalar


def lagrangian(problem: Problem, y: PyTree, v: PyTree, batch: Batch | None) -> Callable[[PyTree], Scalar]:
    """Return x ↦ f(x, y) − ⟨v, ∇_y g(x, y)⟩, whose gradient is ∇_x f − ∇²_xy g·v.

    This is the Lagrangian of the constraint ∇_y g = 0. Rules that search along a line evaluate it. It holds y and v
    fixed, so it has the slope of Φ at x but not its curvature.
    """
    return lambda x: problem.f(x, y, batch) - tree.vdot(v, problem.oracles.inner_gradient(x, y, batch))


def energy(inner: Curvature, b: PyTree) -> Callable[[PyTree], Scalar]:
    """Return v ↦ ½vᵀ∇²_yy g·v − vᵀb, whose gradient is ∇²_yy g·v − b: a step on the adjoint system lowers it."""
    return lambda v: jnp.asarray(0.5 * tree.vdot(v, inner.hessian(v)) - tree.vdot(v, b))


def tilted(
    function: Callable[[PyTree], Scalar], at: PyTree, gradient: PyTree, estimate: PyTree
) -> Callable[[PyTree], Scalar]:
    """Return the function plus a linear term that changes its gradient at a point into the estimate."""
    return lambda point: function(point) + tree.vdot(tree.sub(estimate, gradient), tree.sub(point, at))
