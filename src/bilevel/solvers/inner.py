"""Steps on the inner variable alone, x held fixed."""

from collections.abc import Callable
from typing import Any

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
