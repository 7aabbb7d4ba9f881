"""Run as a value: everything that the next step needs, and a description of its origin."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from bilevel.arrays import as_arrays, is_explicit
from bilevel.batch import Batch, Draws, Levels, dressed
from bilevel.checks import check_traced_seed
from bilevel.checks.values import is_ours
from bilevel.identity import Static, described, skeleton
from bilevel.loop.data.streams import Given, as_stream, draw
from bilevel.solvers.base import Solver, check_solver
from bilevel.solvers.rule_closures import Closures
from bilevel.solvers.step_scaling import Shortened
from bilevel.types import PyTree

Fingerprint = tuple[tuple[str, str], ...]  # (what, in words)
OBJECTIVES = 0x6B6579  # any number that no step or epoch reaches


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["solver", "model", "cursor", "step", "warm", "seed"],
    meta_fields=["fingerprint"],
)
@dataclass(frozen=True, eq=False)
class RunState:
    """Run between two steps: a pytree of arrays, so that it can be vmapped, donated, sharded and saved.

    `bl.start` and `bl.scan` return one. `result.run` and a hook's `event.run` are others. Its fields:

    * `x` and `y`, short for `solver.x` and `solver.y`;
    * `solver`: the state of the solver, not the solver: x, y, v and the method's other variables;
    * `model`: the model's state, such as batch-norm statistics, or None;
    * `cursor`: the position in the data;
    * `step`: the number of steps taken, modulo 2³²;
    * `warm`: the number of warm-up steps taken before them;
    * `seed`: the words of the run's random key;
    * `fingerprint`: a description of the solver, the problem and the data, which a resumed run compares.

    The key of a step depends only on `seed` and `step`, so a run continued from here equals an unbroken one.
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
    """Return the start of a run for `bl.scan`; usable inside `jit` and `vmap`.

    Args:
        solver: any solver, for instance `bl.aid(...)`.
        x0: the start of x.
        y0: the start of y.
        data: a `Batch` used whole at every step, or a stream such as `bl.epochs(...)`.
        seed: a whole number, possibly traced, for the keys of the objectives.
        model_state: the model's state, such as batch-norm statistics, for objectives that ask for `state`.
    """
    check_solver(solver)
    seed = check_traced_seed(seed)
    stream, model = as_stream(data), as_arrays(model_state, "model_state")
    if model is not None and "state" not in solver.problem.wants:
        raise ValueError(
            "a model_state was given, but neither objective asks for it: let them take the keyword `state`, or leave "
            "it out"
        )
    # Folded once, so that the keys differ from the keys of a data stream with the same seed.
    seed_words = jax.random.key_data(jax.random.fold_in(jax.random.key(seed), OBJECTIVES))
    cursor = stream.start(0)
    _, batch = draw(stream, cursor, solver.draws, solver.traits.same_rows)
    blank = RunState(None, model, cursor, jnp.uint32(0), jnp.uint32(0), seed_words, ())
    with explained_on_mesh(x0, y0, data):
        state = solver.init(x0, y0, dress(solver, blank, batch))
    state = jax.tree.map(jnp.copy, state)  # the run must not donate the caller's x0 and y0
    made_by = fingerprint(solver, state.x, state.y, stream, model)
    return RunState(state, model, cursor, blank.step, blank.warm, seed_words, made_by)


def dress(
    solver: Solver, run: RunState, batch: Batch | Draws | None, *, number: Any = None
) -> Batch | Draws | None:
    """Return the batch of the run's next step, with the key and the model state that the objectives ask for.

    The key follows from the step's number. Warm-up steps have numbers below zero.
    """
    wants = solver.wants
    if not wants & {"key", "state"}:
        return batch
    key = None
    if "key" in wants and run.seed is not None:
        key = jax.random.fold_in(jax.random.wrap_key_data(run.seed), run.step if number is None else number)
    return dressed(batch, key, run.model if "state" in wants else None)


@contextmanager
def explained_on_mesh(*trees: Any) -> Iterator[None]:
    """Add a remedy where JAX refuses arrays of an Explicit mesh, or a loop inside `jax.shard_map`."""
    try:
        yield
    except Exception as error:
        remedy = "" if is_ours(error) else _remedy(trees)
        if not remedy:
            raise
        raise ValueError(remedy) from error


def _remedy(trees: Any) -> str:
    if AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        return (
            "JAX refused a loop inside jax.shard_map, because an array in it begins as the same on all devices and "
            "ends as another on each: pass check_vma=False to jax.shard_map"
        )
    if any(is_explicit(leaf) for leaf in jax.tree.leaves(trees)):
        return (
            "an array lies on a mesh whose axes are Explicit, the default of jax.make_mesh, and inside jit or vmap "
            "every operation on it must then name its sharding, which objectives do not: make the mesh with "
            "jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))"
        )
    return ""


def fingerprint(solver: Solver, x: PyTree, y: PyTree, stream: Any, model_state: PyTree) -> Fingerprint:
    """Describe the solver and its rules without step sizes, the objectives, and the shapes of all arrays."""
    return (
        ("solver", _words(solver)),
        ("inner objective", described(solver.problem.inner)),
        ("outer objective", described(solver.problem.outer)),
        ("x", _shapes(x)),
        ("y", _shapes(y)),
        ("model state", _shapes(model_state)),
        (
            "data",
            "a loader" if stream is None or isinstance(stream, Given) else _drawn(stream),
        ),
    )


def difference(before: Fingerprint, now: Fingerprint) -> str | None:
    """Return a sentence on the first difference, or None."""
    for (what, then), (_, here) in zip(before, now, strict=True):
        if then != here:
            return f"its {what} was {_short(then)}, here it is {_short(here)}"
    return None


def _words(value: Any) -> str:
    """Describe a solver, a rule or an ingredient: its type and static settings, without its leaves."""
    if isinstance(value, Static):
        return _words(value.value)
    if isinstance(value, Shortened):  # its step size is a number
        return _words(value.rule)
    if isinstance(value, Closures):
        return f"{described(value.value.update)}#{skeleton(value.value.update)}"
    if is_dataclass(value):
        parts = [
            f"{field.name}={_words(getattr(value, field.name))}"
            for field in fields(value)
            if field.name != "problem"
            and (field.metadata.get("static") or is_dataclass(getattr(value, field.name)))
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    if callable(value):
        return described(value)
    return repr(value)


def _drawn(stream: Any) -> str:
    """Describe a stream: its type, its samplers, and the shapes of its arrays."""
    samplers = getattr(stream, "samplers", Levels())._asdict()
    how = [
        f"{level}: {type(s).__name__} {s.size} of {s.examples}"
        for level, s in samplers.items()
        if s is not None
    ]
    return f"{type(stream).__name__}({', '.join(how)}) of {_shapes(stream)}"


def _shapes(tree: PyTree) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if not leaves:
        return "nothing"
    shown = [
        f"{jax.tree_util.keystr(path)} {jnp.result_type(leaf)}{list(jnp.shape(leaf))}".strip()
        for path, leaf in leaves
    ]
    return ", ".join(shown)


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
