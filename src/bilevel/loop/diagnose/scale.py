"""Whether x only scales g, under an inner rule whose steps do not depend on the scale of g (Adam and its like)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.batch import draws
from bilevel.loop.diagnose.measurements import moves
from bilevel.solvers.base import Solver
from bilevel.solvers.parts.trees import dot, scaled
from bilevel.solvers.rules import Rule, Settled, Transformation
from bilevel.types import PyTree

STEPS = 4  # of the trial
SIZE = 0.05  # of its gradients: below the usual limits of clipping by norm
LARGER = 8.0  # the second time
ALIKE = 1e-2  # relative difference of the ways that y went
POINTS = 4  # at which g is compared with itself
APART = 0.3  # of an entry of y, or of 1
SAME = 1e-3  # relative difference of the logarithmic derivatives


def inner_transformation(solver: Solver) -> Rule | None:
    """Return the optax rule of the inner level; only such a rule may be scale-free."""
    rule = solver.rule("inner")
    rule = rule.rule if isinstance(rule, Settled) else rule
    return rule if isinstance(rule, Transformation) and solver.second_order else None


def look_at_scale(solver: Solver, state: Any, batch: Any, whole: bool) -> dict[str, Any]:
    """Return whether the inner rule is scale-free, and which arrays of x have entries that only scale g.

    If g = s(x)·k(y) then ∇_x⟨∇_y g, w⟩/⟨∇_y g, w⟩ = ∇ log s(x), whatever y and w are: compared at several of both.
    An entry that f depends on as well does more than that.
    """
    rule, data = inner_transformation(solver), draws(batch)[0]
    assert rule is not None

    def way(size: float) -> PyTree:
        y, memory = state.y, rule.init(state.y)
        for k in range(STEPS):
            y, memory = rule.update(scaled(size, _pattern(state.y, k)), memory, y)
        return tree.sub(y, state.y)

    one, other = way(SIZE), way(LARGER * SIZE)
    free = (tree.norm(tree.sub(one, other)) <= ALIKE * tree.norm(one)) & (tree.norm(one) > 0)

    def slope(k: jax.Array) -> PyTree:
        far = jax.tree.map(
            lambda a, b: a + APART * (1 + jnp.abs(a)) * jnp.sign(b), state.y, _pattern(state.y, k)
        )
        curvature = solver.problem.oracles.curvature(state.x, far, data)
        gradient = solver.problem.oracles.inner_gradient(state.x, far, data)
        w = tree.add(scaled(1 / tree.norm(gradient), gradient), _pattern(state.y, k + POINTS))
        return scaled(1 / dot(gradient, w), curvature.cross(w))

    slopes = lax.map(slope, jnp.arange(POINTS))
    aside = jax.tree.map(
        lambda a: a + SAME * (1 + jnp.abs(a)), state.x
    )  # where f is not stationary by chance
    f_x = solver.problem.oracles.outer_gradients(aside, state.y, data).x

    def only_scales(a: jax.Array, direct: jax.Array) -> jax.Array:
        return (jnp.abs(a - a[0]) <= SAME * jnp.abs(a[0])).all(0) & (a[0] != 0) & (direct == 0)

    return {"free": free, "scales": moves(jax.tree.map(only_scales, slopes, f_x))}


def _pattern(y: PyTree, k: Any) -> PyTree:
    """A direction of length one, another one for every k."""
    wave = lambda a: jnp.cos(jnp.arange(1, a.size + 1) * (1 + jnp.asarray(k, float) * 0.7)).reshape(a.shape)
    tree_of = jax.tree.map(lambda a: wave(a).astype(a.dtype), y)
    return scaled(1 / tree.norm(tree_of), tree_of)
