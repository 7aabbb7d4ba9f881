"""y*(x) to rounding by truncated Newton steps, and sizes of variables on the host."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.solvers.parts.newton import minimize
from bilevel.types import PyTree, Scalar

PRODUCTS = 10_000  # the most for one y


class InnerSolution(NamedTuple):
    y: PyTree
    gradient: Scalar | float  # ‖∇_y g(x, y)‖
    done: Bool[Array, ""] | bool  # whether it is as small as requested, or as rounding permits


def solve_inner(problem: Problem, x: PyTree, y: PyTree, data: Batch | None, L: float) -> InnerSolution:
    """Return y*(x) on the host, by Newton from y; L is the largest known curvature of g in y."""
    return jax.device_get(problem.compiled(_solve_inner)(x, y, data, L))


def _solve_inner(problem: Problem, x: PyTree, y: PyTree, data: Batch | None, L: Any) -> InnerSolution:
    real = tree.norm(y).dtype
    accuracy = jnp.asarray(1e-12 if real == jnp.float64 else 1e-6, real)
    solved = minimize(problem, x, y, tree.zeros_like(y), data, accuracy, PRODUCTS)
    gradient = tree.norm(problem.oracles.inner_gradient(x, solved.solution, data))
    rounding = 64 * jnp.finfo(real).eps * jnp.asarray(L, real) * (1 + tree.norm(solved.solution))
    return InnerSolution(solved.solution, gradient, solved.settled | (gradient <= rounding))


# In NumPy, so that JAX compiles nothing for them.


def host_norm(a: PyTree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, float))) for leaf in jax.tree.leaves(a))))


def host_distance(a: PyTree, b: PyTree) -> float:
    return host_norm(jax.tree.map(lambda a, b: np.asarray(a, float) - np.asarray(b, float), a, b))


def host_middle(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: (np.asarray(a) + np.asarray(b)) / np.asarray(2, a.dtype), a, b)
