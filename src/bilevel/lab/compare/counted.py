"""A solver that counts its oracle calls: for methods whose steps do not all cost the same."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from bilevel.counting import counted_step
from bilevel.solvers.base import Info, Solver
from bilevel.types import PyTree


class CountedState(NamedTuple):
    """The solver's state, and the oracle calls so far."""

    own: Any
    gradients: Any  # Gc
    products: Any  # Mv

    @property
    def x(self) -> PyTree:
        return self.own.x

    @property
    def y(self) -> PyTree:
        return self.own.y


class Counted(Solver):
    """`solver`, step for step and bit for bit, with its oracle calls added up in its state."""

    solver: Solver

    @property
    def draws(self) -> int:
        return self.solver.draws

    def init(self, x0: PyTree, y0: PyTree, batch: Any = None) -> CountedState:
        return CountedState(self.solver.init(x0, y0, batch), jnp.int32(0), jnp.int32(0))

    def step(self, state: CountedState, batch: Any = None) -> tuple[CountedState, Info]:
        own, info, calls = counted_step(self.solver)(state.own, batch)
        add = lambda total, more: total + jnp.asarray(more, jnp.int32)
        return CountedState(own, add(state.gradients, calls.Gc), add(state.products, calls.Mv)), info


def record_calls(state: CountedState, info: Info) -> dict[str, Any]:
    """Record the calls made by the end of every step."""
    return {"gradients": state.gradients, "products": state.products}
