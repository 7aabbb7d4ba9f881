"""The penalised problem, an ingredient of the first-order methods.

The constraint "y minimises g(x, ·)" becomes a price λ on g(x, y) − min_z g(x, z):

    L_λ(x) = min_y f(x, y) + λ (g(x, y) − min_z g(x, z)),    ∇L_λ(x) = ∇_x f(x, y) + λ (∇_x g(x, y) − ∇_x g(x, z))

at the two minimisers y = y_λ(x) and z = y*(x). No second derivative appears, and ∇L_λ = ∇Φ + O(1/λ).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float
from optax import tree

from bilevel.oracles import Oracles
from bilevel.problem import Batch
from bilevel.solvers.rule import Rule, check_positive, descend
from bilevel.solvers.trees import scaled, select

PyTree = Any
Schedule = Callable[[Any], Any]


class Copies(NamedTuple):
    """The two inner variables, each with its own memory of the inner rule."""

    y: PyTree  # tracks y_λ(x)
    z: PyTree  # tracks y*(x)
    y_memory: PyTree
    z_memory: PyTree


def as_schedule(penalty: Any) -> Schedule:
    """The penalty as a function of the step: itself if it is one, else constant."""
    if callable(penalty):
        return penalty
    check_positive(
        penalty, "penalty", "or a function of the step such as optax.linear_schedule(1.0, 100.0, 1000)"
    )
    return lambda count: penalty


def track(oracles: Oracles, rule: Rule, steps: int) -> Callable[..., tuple[Copies, PyTree]]:
    """`steps` steps on both copies at x, and ∇_y g at the z they started from:

        z ← rule(z, ∇_y g(x, z))        y ← rule(y, ∇_y g(x, y) + ∇_y f(x, y)/λ)

    The second is a step on f + λg with 1/λ of the step size, the most its smoothness allows for large λ.
    """

    def run(x: PyTree, copies: Copies, penalty: Any, batch: Batch | None) -> tuple[Copies, PyTree]:
        def step(carry, t):
            (y, z, y_memory, z_memory), first = carry
            at_z = oracles.inner_gradient(x, z, batch)
            at_y = oracles.inner_gradient(x, y, batch)
            at_y = tree.add(at_y, scaled(1 / penalty, oracles.outer_gradients(x, y, batch).y))
            z, z_memory = descend(rule, at_z, z_memory, z)
            y, y_memory = descend(rule, at_y, y_memory, y)
            return (Copies(y, z, y_memory, z_memory), select(t == 0, at_z, first)), None

        return lax.scan(step, (copies, tree.zeros_like(copies.z)), jnp.arange(steps, dtype=jnp.int32))[0]

    return run


def estimate(
    oracles: Oracles, x: PyTree, y: PyTree, z: PyTree, penalty: Any, batch: Batch | None
) -> tuple[Float[Array, ""], PyTree]:
    """f(x, y), and ∇_x f(x, y) + λ(∇_x g(x, y) − ∇_x g(x, z)), the estimate of ∇L_λ(x)."""
    f = oracles.outer_gradients(x, y, batch)
    gap = tree.sub(oracles.inner_gradients(x, y, batch).x, oracles.inner_gradients(x, z, batch).x)
    return f.value, tree.add(f.x, scaled(penalty, gap))
