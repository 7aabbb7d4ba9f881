"""Compiled functions of a sweep: one program in which every lane takes its steps, or stays where it broke."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevel.identity import Static
from bilevel.loop.finite import LOOK_AHEAD, health, overflows, parts
from bilevel.loop.lanes import Lanes
from bilevel.loop.program import MANY_ROWS, ROW_BYTES, keeping
from bilevel.loop.scan import Record, step_and_record, take_step, warm_step
from bilevel.loop.state import RunState, start
from bilevel.memory import Tracing
from bilevel.readings import nodes
from bilevel.solvers.base import Solver, without_numbers


class LaneProgram:
    """Compiled functions of a sweep."""

    def __init__(self, chosen: Lanes, record: Record | None):
        structure, axes, keep = chosen.structure, chosen.axes, keeping(record)
        solver_of = lambda leaves: structure.unflatten(leaves)  # as in loop/program.py
        count = len(chosen.lanes)
        lanes = lambda function, *more: jax.vmap(function, in_axes=(*axes, *more), axis_size=count)

        def begin(leaves, x, y, stream, seed, model):
            return start(solver_of(leaves), x, y, stream, seed=seed, model_state=model)

        def warm(leaves, x, y, stream, seed, model, run, count):
            solver = solver_of(leaves)

            def body(_, carry):
                run, alive, taken, first = carry
                after = warm_step(solver, run, stream)
                first = jnp.where(alive, _breaks(solver, run, after), first)
                alive = alive & ~jnp.any(first)
                run = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after, run)
                return run, alive, taken + alive.astype(taken.dtype), first

            begun, none = run, jnp.zeros(len(parts(solver, run)), bool)
            run, alive, taken, first = lax.fori_loop(
                0, count, body, (run, jnp.array(True), jnp.int32(0), none)
            )
            large = alive & overflows(solver, run) & ~overflows(solver, begun)
            alive = alive & ~jnp.any(large)
            # Drop every y of a warm-up that diverged.
            run = jax.tree.map(lambda new, old: jnp.where(alive, new, old), run, begun)
            broken = _by_name(solver, run, first)
            for name, is_large in zip(solver.variables, large, strict=True):
                broken[name] = broken.get(name, jnp.array(False)) | is_large
            return run, alive, taken, broken

        def advance(leaves, x, y, stream, seed, model, run, alive, taken, rows, begin, end):
            solver = solver_of(leaves)

            def body(i, carry):
                run, alive, taken, rows = carry
                after, info, row = step_and_record(solver, run, stream, keep)
                alive = alive & _sane(solver, run, after) & jnp.isfinite(info.outer_value)
                run = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after, run)
                put = lambda column, value: lax.dynamic_update_index_in_dim(
                    column, _or_nan(alive, value), i, 0
                )
                return run, alive, taken + alive.astype(taken.dtype), jax.tree.map(put, rows, row)

            return lax.fori_loop(begin, end, body, (run, alive, taken, rows))

        def broken(leaves, x, y, stream, seed, model, run):
            """Return which parts break first within the next `LOOK_AHEAD` steps."""
            solver = solver_of(leaves)

            def body(_, carry):
                run, first = carry
                after = take_step(solver, run, stream)[0]
                return after, jnp.where(jnp.any(first), first, _breaks(solver, run, after))

            none = jnp.zeros(len(parts(solver, run)), bool)
            _, first = lax.fori_loop(0, LOOK_AHEAD, body, (run, none))
            return _by_name(solver, run, first)

        tracing = Tracing()
        self.start = tracing.jit(lambda a: lanes(begin)(*a))
        self.warm_up = tracing.jit(lambda a, run, count: lanes(warm, 0, None)(*a, run, count))
        self.steps = tracing.jit(
            lambda a, run, alive, taken, rows, begin, end: lanes(advance, 0, 0, 0, 0, None, None)(
                *a, run, alive, taken, rows, begin, end
            ),
            donate_argnums=(4,),
        )
        self.broken = tracing.jit(lambda a, run: lanes(broken, 0)(*a, run))
        run = jax.eval_shape(self.start, chosen.arguments)

        def row(leaves, x, y, stream, seed, model, run):
            return step_and_record(solver_of(leaves), run, stream, keep)[2]

        shapes = jax.eval_shape(tracing.jit(lambda a, run: lanes(row, 0)(*a, run)), chosen.arguments, run)
        self.row = shapes  # of one step, with the lanes first
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
        self.count = MANY_ROWS
        while self.count > 1 and self.count * size > ROW_BYTES:
            self.count //= 2
        self.rows = jax.jit(
            lambda: jax.tree.map(lambda a: jnp.zeros((a.shape[0], self.count, *a.shape[1:]), a.dtype), shapes)
        )
        self.compiled = False
        self.seconds: float | None = None

    def timed(self, seconds: float | None) -> None:
        """Note that the program is compiled, and its seconds per step if known."""
        self.compiled, self.seconds = True, seconds


def lane_program(chosen: Lanes, record: Record | None) -> LaneProgram:
    """Return the program of a sweep, which the problem keeps like the programs of single runs."""
    arrays, structure = jax.tree.flatten(chosen.arguments)
    shapes = tuple((jnp.shape(a), jnp.result_type(a)) for a in arrays)
    axes = tuple(jax.tree.leaves(chosen.axes, is_leaf=lambda leaf: leaf is None))
    key = chosen.structure, structure, shapes, axes, Static(record), len(chosen.lanes)
    reads = without_numbers(chosen.structure), record, nodes(structure)
    return chosen.solvers[0].problem.kept("sweeps", key, reads, lambda: LaneProgram(chosen, record))


def _sane(solver: Solver, before: RunState, after: RunState) -> jax.Array:
    """Return whether no part that was finite broke: variables, model state, rules' memories."""
    return ~jnp.any(_breaks(solver, before, after))


def _breaks(solver: Solver, before: RunState, after: RunState) -> jax.Array:
    """Return which parts of a run were finite and no longer are."""
    return health(solver, before) & ~health(solver, after)


def _by_name(solver: Solver, run: RunState, flags: jax.Array) -> dict[str, jax.Array]:
    names = [name for name, _ in parts(solver, run)]
    of = {name: np.array([n == name for n in names]) for name in dict.fromkeys(names)}
    return {name: jnp.any(flags & which) for name, which in of.items()}


def _or_nan(alive: jax.Array, value: Any) -> jax.Array:
    value = jnp.asarray(value)
    return jnp.where(alive, value, jnp.nan) if jnp.issubdtype(value.dtype, jnp.floating) else value
