"""What is compiled of a sweep: one program in which every lane takes its steps, or stays where it broke."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevel.identity import Static
from bilevel.loop.judgement import LOOK_AHEAD
from bilevel.loop.lanes import Lanes
from bilevel.loop.program import MANY_ROWS, ROW_BYTES, keeping
from bilevel.loop.scan import Record, step_and_record, take_step, warm_step
from bilevel.loop.state import RunState, start
from bilevel.loop.watch import health, parts
from bilevel.solvers.base import Solver

MOST_PROGRAMS = 16  # of one problem; the oldest goes first


class LaneProgram:
    """The compiled functions of a sweep."""

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
                run, alive, taken = carry
                after = warm_step(solver, run, stream)
                alive = alive & _sane(solver, run, after)
                run = jax.tree.map(lambda new, old: jnp.where(alive, new, old), after, run)
                return run, alive, taken + alive.astype(taken.dtype)

            return lax.fori_loop(0, count, body, (run, jnp.array(True), jnp.int32(0)))

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
            """What breaks first on the way from here, if anything does soon."""
            solver = solver_of(leaves)
            names = [name for name, _ in parts(solver, run)]

            def body(_, carry):
                run, first = carry
                after = take_step(solver, run, stream)[0]
                bad = health(solver, run) & ~health(solver, after)
                return after, jnp.where(jnp.any(first), first, bad)

            _, first = lax.fori_loop(0, LOOK_AHEAD, body, (run, jnp.zeros(len(names), bool)))
            of = {name: np.array([n == name for n in names]) for name in dict.fromkeys(names)}
            return {name: jnp.any(first & which) for name, which in of.items()}

        self.start = jax.jit(lambda a: lanes(begin)(*a))
        self.warm_up = jax.jit(lambda a, run, count: lanes(warm, 0, None)(*a, run, count))
        self.steps = jax.jit(
            lambda a, run, alive, taken, rows, begin, end: lanes(advance, 0, 0, 0, 0, None, None)(
                *a, run, alive, taken, rows, begin, end
            ),
            donate_argnums=(4,),
        )
        self.broken = jax.jit(lambda a, run: lanes(broken, 0)(*a, run))
        run = jax.eval_shape(self.start, chosen.arguments)

        def row(leaves, x, y, stream, seed, model, run):
            return step_and_record(solver_of(leaves), run, stream, keep)[2]

        shapes = jax.eval_shape(lambda a, run: lanes(row, 0)(*a, run), chosen.arguments, run)
        self.row = shapes  # of one step, lanes first
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
        self.count = MANY_ROWS
        while self.count > 1 and self.count * size > ROW_BYTES:
            self.count //= 2
        self.rows = jax.jit(
            lambda: jax.tree.map(lambda a: jnp.zeros((a.shape[0], self.count, *a.shape[1:]), a.dtype), shapes)
        )
        self.compiled = False
        self.seconds: float | None = None


def lane_program(chosen: Lanes, record: Record | None) -> LaneProgram:
    """Kept with the problem, like the programs of single runs."""
    programs = chosen.solvers[0].problem.memory.setdefault("sweeps", {})
    arrays, structure = jax.tree.flatten(chosen.arguments)
    shapes = tuple((jnp.shape(a), jnp.result_type(a)) for a in arrays)
    axes = tuple(jax.tree.leaves(chosen.axes, is_leaf=lambda leaf: leaf is None))
    key = chosen.structure, structure, shapes, axes, Static(record), len(chosen.lanes)
    if key not in programs:
        if len(programs) >= MOST_PROGRAMS:
            programs.pop(next(iter(programs)))
        programs[key] = LaneProgram(chosen, record)
    return programs[key]


def _sane(solver: Solver, before: RunState, after: RunState) -> jax.Array:
    """Whether everything that was finite still is: variables, the model's state, the rules' memories."""
    return jnp.all(health(solver, after) | ~health(solver, before))


def _or_nan(alive: jax.Array, value: Any) -> jax.Array:
    value = jnp.asarray(value)
    return jnp.where(alive, value, jnp.nan) if jnp.issubdtype(value.dtype, jnp.floating) else value
