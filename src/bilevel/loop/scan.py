"""Pure loop: many steps as one program, usable inside jit and vmap. Every run uses it."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state

from bilevel.arrays import check_usable, leaves_of
from bilevel.batch import Batch, first
from bilevel.checks import MANY, check_batch, check_callable, check_count, returns_more, takes
from bilevel.loop.data.streams import FullBatch, Given, Minibatches, Stream, as_stream, draw
from bilevel.loop.state import RunState, dress, explained_on_mesh
from bilevel.solvers.base import Info, Solver, check_solver, check_state
from bilevel.solvers.parts.inner import Carried
from bilevel.types import PyTree

State = TypeVar("State")  # a RunState, or a solver's state; functions return the type that they get
ZERO = np.float32(0)
with jax.ensure_compile_time_eval():
    OUTSIDE = get_opaque_trace_state(convention="")  # outside all transformations
Record = Callable[..., PyTree]  # (state, info) or (state, info, batch) -> row of a step


def scalars(state: Any, info: Info) -> dict[str, Any]:
    """Return the default record of a step: f(x_k, ŷ_k), the hypergradient's norm, and the metrics."""
    return {
        "outer_value": info.outer_value,
        "hypergradient_norm": optax.tree.norm(jax.tree.map(_wide, info.hypergradient)),
    } | info.metrics


def _wide(leaf: Any) -> Any:
    """Cast to at least 32 bits: in fewer bits a sum of squares overflows soon."""
    return leaf.astype(jnp.float32) if leaf.dtype.itemsize < 4 else leaf


def take_step(solver: Solver, run: RunState, stream: Stream) -> tuple[RunState, Info, Any]:
    """Take one step: draw, step, observe. Return the run, its Info, and the batch for records."""
    cursor, batch = draw(stream, run.cursor, solver.draws, solver.traits.same_rows)
    batch = dress(solver, run, batch)
    state, info = solver.step(run.solver, batch)
    model, metrics = observe(solver, run, state, batch, info.model)
    stationarity = stationarity_of(solver, run.solver, info)
    info = Info(
        info.outer_value, info.hypergradient, info.inner_gradient, info.metrics | metrics | stationarity
    )
    return RunState(state, model, cursor, run.step + 1, run.warm, run.seed, run.fingerprint), info, batch


def observe(
    solver: Solver, run: RunState, after: Any, batch: Any, model: Carried | None
) -> tuple[PyTree, dict[str, Any]]:
    """Return the model's next state, and the metrics of both objectives as "inner/…" and "outer/…"."""
    if not any(returns_more(solver.problem, *solver.point(run.solver, batch))):
        return run.model, {}
    inner, outer = solver.observe(run.solver, after, batch, model)
    metrics = {f"inner/{name}": jnp.asarray(value) for name, value in inner.metrics.items()}
    metrics |= {f"outer/{name}": jnp.asarray(value) for name, value in outer.metrics.items()}
    follows = inner.state if model is None else model.after
    return run.model if follows is None else follows, metrics


def stationarity_of(solver: Solver, before: Any, info: Info) -> dict[str, Any]:
    """Return, for a constrained x, the estimated stationarity measure at x_k."""
    rule = solver.rule("outer")
    if rule is None or not rule.constrained:
        return {}
    return {"stationarity": rule.stationarity(before.x, info.hypergradient)}


def warm_step(solver: Solver, run: RunState, stream: Stream) -> RunState:
    """Take one step on only the inner variables, with a new batch."""
    cursor, batch = draw(stream, run.cursor, solver.draws, solver.traits.same_rows)
    batch = dress(solver, run, batch, number=~run.warm)  # −1, −2, … modulo 2³²
    model = run.model
    if returns_more(solver.problem, *solver.point(run.solver, batch)).inner:
        inner, _ = solver.observe(run.solver, run.solver, batch)
        model = run.model if inner.state is None else inner.state
    state = solver.warm_up(run.solver, batch)
    return RunState(state, model, cursor, run.step, run.warm + 1, run.seed, run.fingerprint)


def recorded(record: Record, state: Any, info: Info, batch: Any) -> PyTree:
    return record(state, info, first(batch)) if takes_batch(record) else record(state, info)


def check_record(record: Any) -> None:
    """Raise if the record is no function of (state, info), or of (state, info, batch)."""
    if isinstance(record, type):
        raise TypeError(
            f"record must be a function of (state, info), not the class {record.__name__}: pass a function"
        )
    count = 3 if callable(record) and not takes(record, 2) else 2
    what = "a function of (state, info) or (state, info, batch)"
    check_callable(record, "record", count, what, 'lambda state, info: {"y": state.y}')


def takes_batch(record: Record) -> bool:
    """Return whether a record or probe has a third parameter, for the batch."""
    try:
        parameters = inspect.signature(record).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in positional) >= 3


def advance(
    solver: Solver, run: RunState, stream: Stream, steps: int, record: Record = scalars
) -> tuple[RunState, PyTree]:
    """Take a fixed number of steps. Return the run after them, and the stacked rows of `record`."""

    def body(run, _):
        run, _, row = step_and_record(solver, run, stream, record)
        return run, row

    return lax.scan(body, run, length=steps)


def advance_into(
    step: Callable[[RunState], tuple[RunState, Info, PyTree]],
    run: RunState,
    rows: PyTree,
    count: Any,
    block: int = 1,
) -> tuple[RunState, PyTree, Info]:
    """Take `count` steps (may be traced) and write their rows to the first `rows`. Also return the last Info.

    One compiled program serves any number of steps, so a run in chunks equals a run in one, bit for bit. With
    `block` steps at a time, the inner loop has a static length.
    """
    blank = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(step, run)[1])

    def body(i, carry):
        run, rows, _ = carry
        run, info, row = step(run)
        return run, put_row(rows, row, i), info

    carry, done = (run, rows, blank), 0
    if block > 1:
        many = lambda j, carry: lax.fori_loop(0, block, lambda i, carry: body(block * j + i, carry), carry)
        carry, done = lax.fori_loop(0, count // block, many, carry), block * (count // block)
    return lax.fori_loop(done, count, body, carry)


def put_row(rows: PyTree, row: PyTree, at: Any) -> PyTree:
    put = lambda column, value: lax.dynamic_update_index_in_dim(column, value.astype(column.dtype), at, 0)
    return jax.tree.map(put, rows, row)


def step_and_record(
    solver: Solver, run: RunState, stream: Stream, record: Record
) -> tuple[RunState, Info, PyTree]:
    """Take one step and return its row of the trace too."""
    run, info, batch = take_step(solver, run, stream)
    return run, info, jax.tree.map(jnp.asarray, recorded(record, run.solver, info, batch))


def scan(
    solver: Solver, state: State, data: Any = None, *, steps: int, start: int = 0, record: Record = scalars
) -> tuple[State, PyTree]:
    """Take `steps` steps of `solver` from `state`. Return the last state, and the stacked values of `record`.

    Args:
        solver: any solver, for instance `bl.aid(...)`.
        state: a run from `bl.start(...)` or an earlier scan. Or the solver's state from `solver.init(x0, y0,
            batch)`, if the objectives ask for no key and no state. The result has the same type.
        data: a `Batch` used whole at every step, or a stream such as `bl.epochs(...)`.
        steps: how many steps to take.
        start: the number of steps before a solver's state, so that a stream continues from there.
        record: `(state, info) -> pytree of arrays`, or `(state, info, batch)`, called at every step. Values
            that it does not return cost nothing.
    """
    check_solver(solver)
    check_record(record)
    stream = as_stream(data)
    steps, start = check_count(steps, "steps"), check_count(start, "start", least=0, most=MANY)
    check_start(solver, state, stream)
    run = state if isinstance(state, RunState) else _bare(solver, state, stream, start)
    with explained_on_mesh(run, stream):
        run, trace = advance(solver, run, stream, steps, record)
    return cast(State, run if isinstance(state, RunState) else run.solver), trace


def warm_up(solver: Solver, state: State, data: Any = None, *, steps: int) -> State:
    """Take `steps` steps on only the inner variables at the state's x (the paper's initialization lemmas).

    Each step takes a new batch. A run from the result continues in the data after them.
    """
    check_solver(solver)
    stream, steps = as_stream(data), check_count(steps, "steps", least=0)
    check_start(solver, state, stream)
    run = state if isinstance(state, RunState) else _bare(solver, state, stream, 0)
    with explained_on_mesh(run, stream):
        run, _ = lax.scan(lambda run, _: (warm_step(solver, run, stream), None), run, length=steps)
    return cast(State, run if isinstance(state, RunState) else run.solver)


def check_start(solver: Solver, state: Any, stream: Stream) -> None:
    """Raise unless the state is a run of this solver on such data, or a state of this solver."""
    check_state(solver, state.solver if isinstance(state, RunState) else state)
    check_usable(state, "state")
    if isinstance(stream, FullBatch | Minibatches | Given):
        check_batch(solver.problem, stream.data)
    if isinstance(state, RunState):
        cursors = (
            jax.tree.structure(state.cursor),
            jax.tree.structure(jax.eval_shape(lambda: stream.start(0))),
        )
        if cursors[0] != cursors[1]:
            raise ValueError(
                "the state belongs to a run on other data than the data given here, which are drawn in another way: "
                "pass the same data to bl.start(solver, x0, y0, data) and here"
            )


def _bare(solver: Solver, state: Any, stream: Stream, start: int) -> RunState:
    """Return a run around a solver's state. Key and model state are then from the batch, if it has any."""
    given = getattr(stream, "data", None)
    needed = {"key", "state"} & (solver.problem.f.needs | solver.problem.g.needs)
    for name in sorted(needed):
        if getattr(given, name, None) is None:
            raise TypeError(
                f"the objectives ask for `{name}`, which a solver's own state does not carry: begin with "
                "bl.start(solver, x0, y0, data, ...) and pass what it returns"
            )
    return RunState(
        state, None, stream.start(start * solver.draws), jnp.uint32(start % 2**32), jnp.uint32(0), None, ()
    )


def check_untraced(what: str, given: dict[str, Any]) -> None:
    """Raise inside a transformation such as jit, even if no argument is traced."""
    trees = {name: tree for name, tree in given.items() if tree is not None}
    if not isinstance(trees.get("data"), None | Tracer | Batch | Stream):
        del trees["data"]  # a loader is no tree
    try:
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))
    except (TypeError, ValueError):  # keys of a dict that cannot be sorted
        traced = True
    if not traced and get_opaque_trace_state(convention="") == OUTSIDE:
        return
    names = [
        name
        for name, tree in trees.items()
        if any(isinstance(leaf, Tracer) for leaf in leaves_of(tree, name))
    ]
    if names or isinstance(lax.neg(ZERO), Tracer):  # every new array is traced there
        where = names[0] if names else "everything"
        raise TypeError(
            f"{what} drives the host and cannot run inside jit, vmap or grad, where {where} is traced: use bl.scan "
            "there, or bl.sweep for many runs"
        )
