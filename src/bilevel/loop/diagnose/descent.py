"""Whether a run descends at all: maps that return NaN, steps that climb, and objectives without a lower bound."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from optax import tree

from bilevel.batch import first
from bilevel.problem import Problem
from bilevel.solvers.adjoints.gradient_steps import OneStep, Steps
from bilevel.solvers.base import Solver
from bilevel.solvers.parts.trees import all_finite, dot, scaled
from bilevel.solvers.rules import Descent, Rule, Settled
from bilevel.types import PyTree

AHEAD = 32  # inner steps, on which the map of the inner rule is tried
SHORTER = 10.0 ** -np.arange(0, 40, 2)  # of the way that y has run away: up to where g is finite
AGAINST = 100.0  # times the largest number in its memory: the gradient with which a rule is tried
UNBOUNDED = 1e3  # times its size at the beginning: so far below that an objective has no lower bound
ROWS = 5  # of the trace, along which f falls to the end
MOVES = {"inner": "y", "adjoint": "v", "outer": "x"}  # what the rules of the levels move


def faulty_maps(solver: Solver, state: Any, batch: Any) -> dict[str, jax.Array]:
    """Return for each level whose rule ends with a map whether that map makes NaN of a finite point; and at once.

    "At once" is of the very point where the level stands, which no smaller step leaves.
    """
    found = {}
    if isinstance(rule := solver.inner_at(state.x) if solver.rule("inner") else None, Settled):
        found["inner"] = _on_the_way(solver, rule, state, batch)
    if isinstance(rule := solver.rule("outer"), Settled):
        h = solver.step(state, batch)[1].hypergradient
        ahead = rule.rule.update(h, state.outer, state.x)[0]
        fine = jnp.stack([~all_finite(ahead) | _fine(rule, ahead), _fine(rule, state.x)])
        found["outer"] = ~fine
    return found


def _on_the_way(solver: Solver, rule: Settled, state: Any, batch: Any) -> jax.Array:
    gradient = lambda y: solver.problem.oracles.inner_gradient(state.x, y, first(batch))
    y0 = solver.sets_out(state)

    def step(_, carry):
        y, memory, fine = carry
        ahead, after = rule.rule.update(gradient(y), memory, y)
        settled = rule.settle(ahead)
        fine &= ~all_finite(ahead) | _fine(rule, ahead)
        return settled, after, fine

    fine = lax.fori_loop(0, AHEAD, step, (y0, state.inner, jnp.array(True)))[2]
    return ~jnp.stack([fine, _fine(rule, y0)])


def _fine(rule: Settled, point: PyTree) -> jax.Array:
    """Whether the map and its derivative are finite there."""
    ones = tree.ones_like(point)
    return all_finite(jax.jvp(rule.settle, (point,), (ones,)))


def reversed_levels(solver: Solver, state: Any) -> dict[str, jax.Array]:
    """Return for each level whether its rule climbs: a step along the gradient leads lower than one against it.

    The difference of both steps has no momentum, decay or other part in it that the gradient's sign does not change.
    """
    found = {}
    for level, moves in MOVES.items():
        rule = _rule(solver, level)
        if rule is None or isinstance(rule, Descent):
            continue
        memory, origin = getattr(state, level), tree.zeros_like(getattr(state, moves))
        ones = tree.ones_like(origin)
        gradient = scaled(
            AGAINST * (1 + _largest(memory)), ones
        )  # or a momentum that has run away would hide it
        down, up = (rule.update(each, memory, origin)[0] for each in (gradient, tree.scale(-1, gradient)))
        found[level] = dot(tree.sub(up, down), ones) < 0
    return found


def _largest(memory: PyTree) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(memory) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    sizes = [jnp.max(jnp.where(jnp.isfinite(a), jnp.abs(a), 0), initial=0).astype(float) for a in floats]
    return jnp.max(jnp.stack(sizes), initial=0) if sizes else jnp.zeros(())


def _rule(solver: Solver, level: str) -> Rule | None:
    """The rule of a level, without the map that ends its steps."""
    if level == "adjoint":
        adjoint = vars(solver).get(level)
        return adjoint.rule if isinstance(adjoint, OneStep | Steps) else None
    rule = solver.rule(level)
    return rule.rule if isinstance(rule, Settled) else rule


def values_on_the_way(
    problem: Problem, x: PyTree, y: PyTree, end: PyTree, batch: Any
) -> tuple[jax.Array, jax.Array]:
    """Return g at (x, y), and at ever shorter shares of the way from y to `end`."""
    way = tree.sub(end, y)
    at = lambda share: problem.g(x, jax.tree.map(lambda a, b: a + share.astype(a.dtype) * b, y, way), batch)
    return problem.g(x, y, batch), lax.map(at, jnp.asarray(SHORTER, float))


def falls_without_end(value: float, values: np.ndarray) -> bool:
    """Whether a function falls from `value` far below it, and fastest at the end: shortest way first."""
    values = values[np.isfinite(values)]
    bound = value - UNBOUNDED * max(abs(value), 1.0)
    return bool(len(values) > 2 and values[-1] < bound and values[-1] < values[-2] < values[-3])


def f_falls(trace: np.ndarray) -> bool:
    """Whether the outer value fell without end: the trace of a run that ran away downhill."""
    values = trace[np.isfinite(trace)]
    return (
        len(values) >= ROWS
        and bool((np.diff(values[-ROWS:]) < 0).all())
        and falls_without_end(values[0], values)
    )
