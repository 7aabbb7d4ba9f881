"""The functions whose gradients an implicit method follows, for rules that ask for their values."""

from collections.abc import Callable

import jax.numpy as jnp
from optax import tree

from bilevel.batch import Batch
from bilevel.oracles import Curvature
from bilevel.problem import Problem
from bilevel.types import PyTree, Scalar


def lagrangian(problem: Problem, y: PyTree, v: PyTree, batch: Batch | None) -> Callable[[PyTree], Scalar]:
    """x ↦ f(x, y) − ⟨v, ∇_y g(x, y)⟩, with the gradient ∇_x f − ∇²_xy g·v: the Lagrangian of "∇_y g = 0" at (y, v).

    For outer rules that search along a line. It holds y and v fixed, so it knows the slope of Φ but not its curvature.
    """
    return lambda x: problem.f(x, y, batch) - tree.vdot(v, problem.oracles.inner_gradient(x, y, batch))


def energy(inner: Curvature, b: PyTree) -> Callable[[PyTree], Scalar]:
    """v ↦ ½vᵀ∇²_yy g·v − vᵀb, with the gradient ∇²_yy g·v − b: what a step on the adjoint system lowers."""
    return lambda v: jnp.asarray(0.5 * tree.vdot(v, inner.hessian(v)) - tree.vdot(v, b))
