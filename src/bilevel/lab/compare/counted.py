"""A solver that knows what it has spent: for methods whose steps do not all cost the same."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from bilevel.counting import Counts, counted_step
from bilevel.solvers.base import Info, Solver
from bilevel.types import PyTree


class Tally(NamedTuple):
    """The solver's own state, and the oracle calls behind it."""

    own: Any
    gradients: Any  # Gc
    products: Any  # Mv

    @property
    def x(self) -> PyTree:
        return self.own.x

    @property
    def y(self) -> PyTree:
        return self.own.y


class Tallied(Solver):
    """`solver`, step for step and bit for bit, with its oracle calls added up in its state."""

    solver: Solver

    @property
    def draws(self) -> int:
        return self.solver.draws

    def init(self, x0: PyTree, y0: PyTree, batch: Any = None) -> Tally:
        return Tally(self.solver.init(x0, y0, batch), jnp.int32(0), jnp.int32(0))

    def step(self, state: Tally, batch: Any = None) -> tuple[Tally, Info]:
        own, info, calls = counted_step(self.solver)(state.own, batch)
        return Tally(
            own, *(a + jnp.asarray(b, jnp.int32) for a, b in zip(state[1:], _cost(calls), strict=True))
        ), info


def tallied(solver: Solver) -> Tallied:
    return Tallied(solver.problem, solver)


def spent(state: Tally, info: Info) -> dict[str, Any]:
    """A record of the calls made by the end of every step."""
    return {"gradients": state.gradients, "products": state.products}


def _cost(calls: Counts) -> tuple[Any, Any]:
    return calls.Gc, calls.Mv
