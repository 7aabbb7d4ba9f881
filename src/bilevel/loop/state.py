"""A run as a value: everything the next step needs, and what produced it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bilevel.arrays import as_arrays
from bilevel.batch import Batch, Draws, dressed
from bilevel.checks import check_traced_seed
from bilevel.loop.data.streams import as_stream, draw
from bilevel.loop.devices.meshes import explained_on_mesh
from bilevel.loop.fingerprint import Fingerprint, fingerprint
from bilevel.solvers.base import Solver, check_solver
from bilevel.types import PyTree

OBJECTIVES = 0x6B6579  # any number that no step or epoch will reach


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["solver", "model", "cursor", "step", "warm", "seed"],
    meta_fields=["fingerprint"],
)
@dataclass(frozen=True, eq=False)
class RunState:
    """A run between two steps: a pytree of arrays, so that it can be vmapped, donated, sharded and saved.

    `bl.start` makes one, `bl.scan` takes and returns one, `result.run` and a hook's `event.run` are one. It has

    * `x` and `y`, short for `solver.x` and `solver.y`;
    * `solver`: the state of the solver, not the solver: x, y, v and what else the method keeps between steps;
    * `model`: the model's state, such as batch-norm statistics, or None;
    * `cursor`: the position in the data;
    * `step`: the number of steps taken, modulo 2³²;
    * `warm`: the number of warm-up steps taken before them;
    * `seed`: the words of the run's random key;
    * `fingerprint`: a description of the solver, the problem and the data, which a resumed run compares.

    The key of a step is a function of `seed` and `step` alone, so a run that goes on from here does exactly what an
    unbroken one would have done.
    """

    solver: PyTree
    model: PyTree
    cursor: PyTree
    step: Any  # uint32
    warm: Any  # uint32
    seed: Any  # uint32, or None
    fingerprint: Fingerprint

    @property
    def x(self) -> PyTree:
        return self.solver.x

    @property
    def y(self) -> PyTree:
        return self.solver.y


def start(
    solver: Solver,
    x0: PyTree,
    y0: PyTree,
    data: Any = None,
    *,
    seed: Any = 0,
    model_state: PyTree = None,
) -> RunState:
    """The beginning of a run: what `bl.scan` takes, for use inside `jit` and `vmap`.

    Args:
        solver: any solver, for instance `bl.aid(...)`.
        x0: where x starts.
        y0: where y starts.
        data: a `Batch` seen whole at every step, or a stream such as `bl.epochs(...)`.
        seed: a whole number, possibly traced, from which the objectives' keys are made.
        model_state: what the model carries along besides y, for objectives that ask for `state`.
    """
    check_solver(solver)
    seed = check_traced_seed(seed)
    stream, model = as_stream(data), as_arrays(model_state, "model_state")
    if model is not None and "state" not in solver.problem.wants:
        raise ValueError(
            "a model_state was given, but neither objective asks for it: let them take the keyword `state`, or leave "
            "it out"
        )
    # Folded once, so that the objectives' keys are not those of a data stream with the same seed.
    seed_words = jax.random.key_data(jax.random.fold_in(jax.random.key(seed), OBJECTIVES))
    cursor = stream.start(0)
    _, batch = draw(stream, cursor, solver.draws, solver.traits.same_rows)
    blank = RunState(None, model, cursor, jnp.uint32(0), jnp.uint32(0), seed_words, ())
    with explained_on_mesh(x0, y0, data):
        state = solver.init(x0, y0, dress(solver, blank, batch))
    state = jax.tree.map(jnp.copy, state)  # x0 and y0 stay the caller's, whatever becomes of the run
    made_by = fingerprint(solver, state.x, state.y, stream, model)
    return RunState(state, model, cursor, blank.step, blank.warm, seed_words, made_by)


def dress(
    solver: Solver, run: RunState, batch: Batch | Draws | None, *, number: Any = None
) -> Batch | Draws | None:
    """The batch of the run's next step, with the key and the model state that are asked for.

    The key follows from the step's number; a warm-up step has one of its own, below zero.
    """
    wants = solver.wants
    if not wants & {"key", "state"}:
        return batch
    key = None
    if "key" in wants and run.seed is not None:
        key = jax.random.fold_in(jax.random.wrap_key_data(run.seed), run.step if number is None else number)
    return dressed(batch, key, run.model if "state" in wants else None)
