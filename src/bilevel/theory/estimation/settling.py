"""y*(x) to rounding by truncated Newton steps: what every measurement at a point begins with."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.solvers.parts.newton import minimize
from bilevel.types import PyTree, Scalar

PRODUCTS = 10_000  # that may be spent on one y


class Settled(NamedTuple):
    y: PyTree
    gradient: Scalar | float  # ‖∇_y g(x, y)‖
    done: Bool[Array, ""] | bool  # whether it is as small as asked for, or as rounding makes it


def settle(problem: Problem, x: PyTree, y: PyTree, data: Batch | None, L: float) -> Settled:
    """y*(x) from y, on the host; L is the largest curvature of g in y that is known of."""
    return jax.device_get(problem.compiled(_settle)(x, y, data, L))


def _settle(problem: Problem, x: PyTree, y: PyTree, data: Batch | None, L: Any) -> Settled:
    real = tree.norm(y).dtype
    accuracy = jnp.asarray(1e-12 if real == jnp.float64 else 1e-6, real)
    solved = minimize(problem, x, y, tree.zeros_like(y), data, accuracy, PRODUCTS)
    gradient = tree.norm(problem.oracles.inner_gradient(x, solved.solution, data))
    rounding = 64 * jnp.finfo(real).eps * jnp.asarray(L, real) * (1 + tree.norm(solved.solution))
    return Settled(solved.solution, gradient, solved.settled | (gradient <= rounding))
