"""Steps on the inner variable at one x, each on its draw; the model's state is carried from step to step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bilevel.batch import Batch, Draws, Same, draws, first, with_state
from bilevel.identity import Static
from bilevel.problem import Problem
from bilevel.solvers.rules import Proximal, Rule, ValueFunction, descend
from bilevel.types import PyTree


class Carried(NamedTuple):
    """Model's state in a step with inner steps that carry it along."""

    seen: PyTree  # the input of the last inner step, and of everything after it in the step
    after: PyTree  # the output of the last inner step, from which the next outer step starts


class InnerLoop(NamedTuple):
    y: PyTree
    memory: PyTree
    gradient: PyTree  # ∇_y g, or the gradient that was descended, where the loop began
    last: Batch | None  # the batch of the last step, with the state that this step saw
    model: Carried | None  # None for a step that updates the state as `Solver.observe` does


def inner_rule(problem: Problem, rule: Rule, x: PyTree) -> Rule:
    """Return the inner rule at x: with the problem's proximal map, if it has one."""
    return rule if problem.prox is None else Proximal(rule, x, Static(problem.prox))


def inner_loop(
    problem: Problem,
    rule: Rule,
    steps: int,
    x: PyTree,
    y: PyTree,
    memory: PyTree,
    batch: Batch | Draws | None,
) -> InnerLoop:
    """Take `steps` steps y ← rule(y, ∇_y g(x, y)), the t-th one on the t-th draw."""
    gradient = problem.oracles.inner_gradient
    of_g = lambda seen: (lambda y: gradient(x, y, seen), lambda y: problem.g(x, y, seen))
    state = carried_state(problem, batch) if steps > 1 else None
    return take_steps(problem, inner_rule(problem, rule, x), steps, x, y, memory, draws(batch), state, of_g)


def take_steps(
    problem: Problem,
    rule: Rule,
    steps: int,
    x: PyTree,
    y: PyTree,
    memory: PyTree,
    drawn: Draws | Same,
    state: PyTree,
    descended: Callable[[Any], tuple[Callable[[PyTree], PyTree], ValueFunction]],
) -> InnerLoop:
    """Take `steps` steps of `rule` from y; `descended` returns the gradient and the value on a draw, of y."""

    def step(y: PyTree, memory: PyTree, model: PyTree, t: Any) -> tuple[Any, ...]:
        seen = with_state(drawn[t], model)
        gradient_at, value = descended(seen)
        gradient = gradient_at(y)
        after, memory = descend(rule, gradient, memory, y, value)
        return (after, memory, model, next_state(problem, x, y, seen, model)), gradient

    point, gradient = step(y, memory, state, 0)
    if steps > 1:  # the single-loop case needs no scan
        times = jnp.arange(1, steps, dtype=jnp.int32)
        point, _ = lax.scan(lambda at, t: (step(at[0], at[1], at[3], t)[0], None), point, times)
    y, memory, *states = point
    return InnerLoop(y, memory, gradient, with_state(drawn[steps - 1], states[0]), carried(*states))


def carried_state(problem: Problem, batch: Batch | Draws | None) -> PyTree:
    """Return the model's state at the beginning of a loop, or None if it has none."""
    batch = first(batch)
    if batch is None or "state" not in problem.g.extras:
        return None
    return jax.tree.map(jnp.asarray, batch.state)


def next_state(problem: Problem, x: PyTree, y: PyTree, batch: Batch | None, state: PyTree) -> PyTree:
    """Return the next state, which g returns at (x, y) on this batch; None if none is carried."""
    return None if state is None else problem.g.evaluate(x, y, batch).state


def seen_by(model: Carried | None, batch: Batch | None) -> Batch | None:
    """Return the batch with the state that the last inner step saw."""
    return batch if model is None else with_state(batch, model.seen)


def carried(seen: PyTree, after: PyTree) -> Carried | None:
    return None if after is None else Carried(seen, after)
