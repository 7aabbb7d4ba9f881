"""Steps on the inner variable at one x."""

from jax import lax

from bilevel.batch import Batch
from bilevel.identity import Static
from bilevel.problem import Problem
from bilevel.solvers.rules import Proximal, Rule, descend
from bilevel.types import PyTree


def inner_rule(problem: Problem, rule: Rule, x: PyTree) -> Rule:
    """The inner rule at x: with the problem's proximal map, if it has one."""
    return rule if problem.prox is None else Proximal(rule, x, Static(problem.prox))


def inner_loop(
    problem: Problem, rule: Rule, steps: int, x: PyTree, y: PyTree, memory: PyTree, batch: Batch | None
) -> tuple[PyTree, PyTree, PyTree]:
    """(y, memory, ∇_y g at the start) after `steps` steps y ← rule(y, ∇_y g(x, y))."""
    oracles, value, rule = problem.oracles, lambda y: problem.g(x, y, batch), inner_rule(problem, rule, x)
    first = oracles.inner_gradient(x, y, batch)
    y, memory = descend(rule, first, memory, y, value)
    if steps > 1:  # the single-loop case stays a straight line

        def step(carry, _):
            y, memory = carry
            return descend(rule, oracles.inner_gradient(x, y, batch), memory, y, value), None

        (y, memory), _ = lax.scan(step, (y, memory), length=steps - 1)
    return y, memory, first
