"""Places of runs: where constants are looked at again, because nobody starts where they are worst."""

import math
from collections.abc import Callable
from typing import NamedTuple

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

POINTS = 12  # of a run: at the ends of its last 1/2, 1/4, ..., counted from the start
APART = 1e-6  # ŷ and y* closer than this, relative to y*, are one place


class Explored(NamedTuple):
    """Runs of several methods with one outer step."""

    beta: float
    steps: int
    runs: dict[str, list[tuple]]  # (x, ŷ, y*) at POINTS moments of each; empty if no β kept them finite


def explored(
    make: Callable[[str, float], Solver],
    methods: tuple[str, ...],
    beta: float,
    length: Callable[[float], int],
    x: PyTree,
    y: PyTree,
    data: Batch | None,
    most_halvings: int = 10,
) -> Explored:
    """`length(β)` steps of each method from (x, y), with β halved until all of them stay finite."""
    for _ in range(most_halvings + 1):
        runs = {method: explore(make(method, beta), length(beta), x, y, data) for method in methods}
        if all(runs.values()):
            return Explored(beta, length(beta), runs)
        beta = beta / 2
    return Explored(beta, 0, {})


def explore(solver: Solver, steps: int, x: PyTree, y: PyTree, data: Batch | None) -> list[tuple]:
    """(x, ŷ, y*(x)) at `POINTS` moments of a run of `steps` steps from (x, y); nothing if it does not stay finite."""
    state, done, seen = solver.compiled(_begin)(x, y, data), 0, []
    for moment in sorted({math.ceil(steps / 2**j) for j in range(POINTS)}):
        state, done = solver.compiled(_go_on)(state, data, moment - done), moment
        x, y = jax.device_get((state.x, state.y))
        if not math.isfinite(norm((x, y))):
            return []
        seen.append((x, y, settle(solver.problem, x, y, data)))
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
