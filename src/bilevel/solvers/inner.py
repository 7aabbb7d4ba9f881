"""Steps on the inner variable alone, x held fixed."""

from collections.abc import Callable
from typing import Any

from jax import lax

from bilevel.oracles import Oracles
from bilevel.problem import Batch
from bilevel.solvers.rule import Rule, descend


def inner_step(oracles: Oracles, rule: Rule) -> Callable[[Any, Batch | None], Any]:
    """y ← rule(y, ∇_y g(x, y)) on any state that has x, y and the rule's memory as `inner`."""

    def step(state: Any, batch: Batch | None = None) -> Any:
        gradient = oracles.inner_gradient(state.x, state.y, batch)
        y, memory = descend(rule, gradient, state.inner, state.y)
        return state._replace(y=y, inner=memory)

    return step


def inner_loop(oracles: Oracles, rule: Rule, steps: int) -> Callable[..., tuple[Any, Any, Any]]:
    """`(x, y, memory, batch) -> (y, memory, ∇_y g at the start)` after `steps` steps of `rule` on y."""

    def loop(x: Any, y: Any, memory: Any, batch: Batch | None) -> tuple[Any, Any, Any]:
        first = oracles.inner_gradient(x, y, batch)
        y, memory = descend(rule, first, memory, y)
        if steps > 1:  # the single-loop case stays a straight line

            def step(carry, _):
                y, memory = carry
                return descend(rule, oracles.inner_gradient(x, y, batch), memory, y), None

            (y, memory), _ = lax.scan(step, (y, memory), length=steps - 1)
        return y, memory, first

    return loop
