"""y*(x) to rounding by truncated Newton steps: what every measurement at a point begins with."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool
from optax import tree

from bilevel.batch import Batch
from bilevel.problem import Problem
from bilevel.solvers.ingredients.newton import minimise
from bilevel.types import PyTree, Scalar

PRODUCTS = 10_000  # that may be spent on one y


class Settled(NamedTuple):
    y: PyTree
    gradient: Scalar | float  # ‖∇_y g(x, y)‖
    done: Bool[Array, ""] | bool  # whether it is as small as asked for, or as rounding allows


def settle(problem: Problem, x: PyTree, y: PyTree, data: Batch | None) -> Settled:
    """y*(x) from y; on the host."""
    return jax.device_get(problem.compiled(_settle)(x, y, data))


def _settle(problem: Problem, x: PyTree, y: PyTree, data: Batch | None) -> Settled:
    accuracy = 1e-12 if tree.norm(y).dtype == jnp.float64 else 1e-6
    solved = minimise(
        problem, x, y, tree.zeros_like(y), data, jnp.asarray(accuracy, tree.norm(y).dtype), PRODUCTS
    )
    gradient = tree.norm(problem.oracles.inner_gradient(x, solved.solution, data))
    return Settled(solved.solution, gradient, solved.settled)
