"""Places of runs: where constants are looked at again, because nobody starts where they are worst."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
from jaxtyping import Array

from bilevel.batch import Batch
from bilevel.loop.scan import scan
from bilevel.solvers.base import Solver
from bilevel.theory.estimation.settling import Settled, settle
from bilevel.theory.estimation.survey import Place
from bilevel.theory.estimation.trees import distance, middle, norm
from bilevel.types import PyTree

POINTS = 12  # of a run: at its end, after a half of it, a quarter, an eighth, ...
MOST_HALVINGS = 10
APART = 1e-6  # ŷ and y* closer than this, relative to y*, are one place


class Explored(NamedTuple):
    """A run, and what it passed."""

    beta: float
    steps: int
    seen: list[
        tuple[PyTree, PyTree, Settled]
    ]  # x, ŷ and y*(x) at POINTS moments; none if no β kept it finite

    @property
    def places(self) -> list[Place]:
        return [place for moment in self.seen for place in places(*moment)]


def explored(
    make: Callable[[float], Solver],
    beta: float,
    length: Callable[[float], int],
    x: PyTree,
    y: PyTree,
    data: Batch | None,
    L: float,
) -> Explored:
    """`length(β)` steps of `make(β)` from (x, y), with β halved until they stay finite."""
    for _ in range(MOST_HALVINGS + 1):
        seen = _explore(make(beta), length(beta), x, y, data, L)
        if seen:
            return Explored(beta, length(beta), seen)
        beta = beta / 2
    return Explored(beta, 0, [])


def _explore(
    solver: Solver, steps: int, x: PyTree, y: PyTree, data: Batch | None, L: float
) -> list[tuple[Any, ...]]:
    state, done, seen = solver.compiled(_begin)(x, y, data), 0, []
    for moment in sorted({math.ceil(steps / 2**j) for j in range(POINTS)}):
        state, done = solver.compiled(_go_on)(state, data, moment - done), moment
        x, y = jax.device_get((state.x, state.y))
        if not math.isfinite(norm((x, y))):
            return []
        seen.append((x, y, settle(solver.problem, x, y, data, L)))
    return seen


def _begin(solver: Solver, x: PyTree, y: PyTree, data: Batch | None) -> PyTree:
    return solver.init(x, y, data)


def _go_on(solver: Solver, state: PyTree, data: Batch | None, count: Array) -> PyTree:
    step = lambda _, state: scan(solver, state, data, steps=1, record=lambda state, info: ())[0]
    return lax.fori_loop(0, count, step, state)


def places(x: PyTree, y: PyTree, star: Settled) -> list[Place]:
    """y*(x), and where it is apart from y, that and the middle of the segment that joins the two."""
    found = [Place(x, star.y, solved=bool(star.done))]
    if distance(y, star.y) > APART * norm(star.y):
        found += [Place(x, y), Place(x, middle(y, star.y))]
    return found
