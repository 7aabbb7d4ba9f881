"""The pure loop: many steps as one compiled `lax.scan`, usable inside jit and vmap."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax import lax

from bilevel.checks import check_count
from bilevel.solvers.base import Info, Solver
from bilevel.streams import Stream, as_stream

PyTree = Any
Record = Callable[[Any, Info], PyTree]


def scalars(state: Any, info: Info) -> dict:
    """The default record of a step: f(x_k, ŷ_k), the hypergradient's norm, and the method's own metrics."""
    return {
        "outer_value": info.outer_value,
        "hypergradient_norm": optax.tree.norm(info.hypergradient),
    } | info.metrics


def scan(
    solver: Solver, state: Any, data: Any = None, *, steps: int, start: int = 0, record: Record = scalars
) -> tuple[Any, PyTree]:
    """`steps` steps of `solver` from `state`: the last state, and what `record` kept of every step, stacked.

    Args:
        solver: any solver, for instance `bl.aid(...)`.
        state: from `solver.init(x0, y0, batch)`, or where an earlier scan ended.
        data: a `Batch` seen whole at every step, or a stream such as `bl.epochs(...)`.
        steps: how many.
        start: the number of steps behind `state`; tells a stream where to go on.
        record: `(state, info) -> pytree of arrays`, kept for every step. What it leaves out costs nothing.
    """
    stream = as_stream(data)
    steps, start = check_count(steps, "steps"), check_count(start, "start", least=0)
    state, _, trace, _ = advance(solver.step, state, stream, stream.start(start), steps, record)
    return state, trace


def nothing(info: Info) -> tuple:
    return ()


def advance(
    step: Callable,
    state: Any,
    stream: Stream,
    cursor: PyTree,
    steps: int,
    record: Record,
    last: Callable[[Info], PyTree] = nothing,
) -> tuple[Any, PyTree, PyTree, PyTree]:
    """The loop itself: the state and the stream's cursor after it, the trace, and `last(info)` of its last step."""

    def body(carry, _):
        state, cursor, _ = carry
        cursor, batch = stream.next(cursor)
        state, info = step(state, batch)
        return (state, cursor, last(info)), record(state, info)

    def first(state, cursor):
        return last(step(state, stream.next(cursor)[1])[1])

    shape = () if last is nothing else jax.eval_shape(first, state, cursor)
    carry = (state, cursor, optax.tree.zeros_like(shape))
    (state, cursor, kept), trace = lax.scan(body, carry, length=steps)
    return state, cursor, trace, kept


def warm_up(solver: Solver, state: Any, data: Any = None, *, steps: int) -> Any:
    """`steps` steps on the inner variables alone at the state's x (the paper's initialisation lemmas)."""
    stream = as_stream(data)

    def body(carry, _):
        state, cursor = carry
        cursor, batch = stream.next(cursor)
        return (solver.warm_up(state, batch), cursor), None

    (state, _), _ = lax.scan(body, (state, stream.start(0)), length=check_count(steps, "warmup", least=0))
    return state
