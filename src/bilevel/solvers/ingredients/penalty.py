"""The penalised problem, an ingredient of the first-order methods.

The constraint "y minimises g(x, ·)" becomes a price λ on g(x, y) − min_z g(x, z):

    L_λ(x) = min_y f(x, y) + λ (g(x, y) − min_z g(x, z)),    ∇L_λ(x) = ∇_x f(x, y) + λ (∇_x g(x, y) − ∇_x g(x, z))

at the two minimisers y = y_λ(x) and z = y*(x). No second derivative appears, and ∇L_λ = ∇Φ + O(1/λ).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import Batch, Draws, draws
from bilevel.checks import check_positive
from bilevel.identity import Static
from bilevel.problem import Problem
from bilevel.solvers.ingredients.trees import scaled, select
from bilevel.solvers.rules import Rule, descend
from bilevel.types import Number, PyTree, Scalar, Schedule


class Penalty(eqx.Module):
    """λ as a function of the step number."""

    @abstractmethod
    def __call__(self, k: Int[Array, ""]) -> jax.Array: ...


class Constant(Penalty):
    value: Number

    def __call__(self, k: Int[Array, ""]) -> jax.Array:
        return jnp.asarray(self.value)


class Scheduled(Penalty):
    schedule: Static = eqx.field(static=True)

    def __call__(self, k: Int[Array, ""]) -> jax.Array:
        return jnp.asarray(self.schedule.value(k))


def as_penalty(penalty: Number | Schedule | Penalty) -> Penalty:
    """A number as a constant, a function of the step number as a schedule."""
    if isinstance(penalty, Penalty):
        return penalty
    if callable(penalty):
        return Scheduled(Static(penalty))
    check_positive(
        penalty, "penalty", "or a function of the step such as optax.linear_schedule(1.0, 100.0, 1000)"
    )
    return Constant(penalty)


class PenaltyState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # tracks y_λ(x), the minimiser of f + λg
    z: PyTree  # tracks y*(x), the minimiser of g
    inner: tuple[PyTree, PyTree]  # memories of the inner rule, of y and of z
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]


class Copies(NamedTuple):
    """The two inner variables, each with its own memory of the inner rule."""

    y: PyTree  # tracks y_λ(x)
    z: PyTree  # tracks y*(x)
    y_memory: PyTree
    z_memory: PyTree


def track(
    problem: Problem,
    rule: Rule,
    steps: int,
    x: PyTree,
    copies: Copies,
    penalty: jax.Array,
    batch: Batch | Draws | None,
) -> tuple[Copies, PyTree]:
    """`steps` steps on both copies at x, and ∇_y g at the z they started from:

        z ← rule(z, ∇_y g(x, z))        y ← rule(y, ∇_y g(x, y) + ∇_y f(x, y)/λ)

    The second is a step on f + λg with 1/λ of the step size, the most its smoothness allows for large λ. Of several
    draws the t-th step takes number 2t for z and 2t + 1 for y.
    """
    oracles, drawn = problem.oracles, draws(batch)

    def step(carry, t):
        (y, z, y_memory, z_memory), first = carry
        for_z, for_y = drawn[2 * t], drawn[2 * t + 1]
        at_z = oracles.inner_gradient(x, z, for_z)
        at_y = oracles.inner_gradient(x, y, for_y)
        at_y = tree.add(at_y, scaled(1 / penalty, oracles.outer_gradients(x, y, for_y).y))
        z, z_memory = descend(rule, at_z, z_memory, z, lambda z: problem.g(x, z, for_z))
        y, y_memory = descend(rule, at_y, y_memory, y, mixture(problem, x, penalty, for_y))
        return (Copies(y, z, y_memory, z_memory), select(t == 0, at_z, first)), None

    return lax.scan(step, (copies, tree.zeros_like(copies.z)), jnp.arange(steps, dtype=jnp.int32))[0]


def estimate(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    z: PyTree,
    penalty: jax.Array,
    at_y: Batch | None,
    at_z: Batch | None,
) -> tuple[Scalar, PyTree]:
    """f(x, y), and ∇_x f(x, y) + λ(∇_x g(x, y) − ∇_x g(x, z)), the estimate of ∇L_λ(x)."""
    oracles = problem.oracles
    f = oracles.outer_gradients(x, y, at_y)
    gap = tree.sub(oracles.inner_gradients(x, y, at_y).x, oracles.inner_gradients(x, z, at_z).x)
    return f.value, tree.add(f.x, scaled(penalty, gap))


def mixture(
    problem: Problem, x: PyTree, penalty: jax.Array, batch: Batch | None
) -> Callable[[PyTree], Scalar]:
    """y ↦ g(x, y) + f(x, y)/λ, what y descends."""
    return lambda y: problem.g(x, y, batch) + scaled(1 / penalty, problem.f(x, y, batch))


def penalised(
    problem: Problem, y: PyTree, z: PyTree, penalty: jax.Array, at_y: Batch | None, at_z: Batch | None
) -> Callable[[PyTree], Scalar]:
    """x ↦ f(x, y) + λ (g(x, y) − g(x, z)), with the gradient of `estimate`."""
    return lambda x: problem.f(x, y, at_y) + scaled(penalty, problem.g(x, y, at_y) - problem.g(x, z, at_z))
