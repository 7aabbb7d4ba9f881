"""Counts of the derivatives that a solver evaluates, from its traced program.

    oracle_calls(bl.aid(problem, ...), state, steps=100)
    # Counts(gradients_f=200, gradients_g=100, hessian_products=100, cross_products=100)

**A derivative counts if the next state or the reported `Info` depends on it**, as often as the program
evaluates it. A product inside a loop counts once per turn, and a product in a branch counts if the branch
runs. Under `vmap` each counts as often as the map is wide. An unused partial gradient is dead code, which the
compiler drops, and does not count. Values of f and g are not counted. Two equal calls count as two, although
the compiler may merge them.

`marked` gives every derivative a name in the traced program, and `interpreter` evaluates the live part of
that program with a counter. There are no callbacks: the count is part of the compiled program. The values
equal the values of the plain problem, mostly bit for bit. The compiler may fuse a rebuilt line search
differently and round differently.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from bilevel.batch import Batch, Draws
from bilevel.checks import check_count
from bilevel.counting.interpreter import counting as counting
from bilevel.counting.marked import Counts as Counts, counted as counted
from bilevel.loop.data.streams import as_stream
from bilevel.loop.scan import check_start, scan, warm_up
from bilevel.solvers.base import Info, Solver, check_solver


def counted_step(solver: Solver) -> Callable[..., tuple[Any, Info, Counts]]:
    """Return `step(state, batch) -> (state, info, counts)`, which counts its oracle calls as integer arrays.

    It is pure and returns the values of `solver.step`. Use it inside `jit` and `scan`.
    """
    counting_step = counting(_marked(solver).step)

    def step(state: Any, batch: Batch | Draws | None = None) -> tuple[Any, Info, Counts]:
        (state, info), counts = counting_step(state, batch)
        return state, info, counts

    return step


def oracle_calls(solver: Solver, state: Any, data: Any = None, *, steps: int = 1) -> Counts:
    """Return the oracle calls of `steps` steps from `state`; arguments as for `bl.scan`.

    A call counts if the state or the `Info` of any step needs it.
    """
    check_count(steps, "steps")
    check_start(check_solver(solver), state, as_stream(data))
    marked, everything = _marked(solver), lambda state, info: info
    return _total(lambda *at: scan(marked, *at, steps=steps, record=everything), state, data)


def warm_up_calls(solver: Solver, state: Any, data: Any = None, *, steps: int = 1) -> Counts:
    """Return the oracle calls of `steps` steps on the inner variables only."""
    marked = _marked(solver)
    return _total(lambda *at: warm_up(marked, *at, steps=steps), state, data)


def _marked(solver: Solver) -> Any:
    return dataclasses.replace(solver, problem=counted(solver.problem))


def _total(program: Callable[..., Any], state: Any, data: Any) -> Counts:
    counts = jax.jit(lambda *args: counting(program)(*args)[1])(state, as_stream(data))
    return Counts(*map(int, counts))
