"""Checks of a run: which parts are not finite, since when, and the possible cause."""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool

from bilevel.arrays import at_hand
from bilevel.loop.state import RunState
from bilevel.loop.trace import Columns
from bilevel.solvers.base import Solver
from bilevel.types import PyTree

FAR = 1e3
LOOK_AHEAD = 200  # steps within which a variable may follow a loss that became infinite
PIECE = 2**16
BEFORE = re.compile(r"^(\[\d+\])?\.data(\.stacked)?(?=\.)")  # the part of a path before the level
NORM = "hypergradient_norm"
RULES = ("inner", "adjoint", "outer", "auxiliary", "start")  # fields of the state with a rule's memory


def health(solver: Solver, run: RunState) -> Bool[Array, " flags"]:
    """Return whether each floating array of the state's parts is finite."""
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for _, leaf in parts(solver, run)])


def parts(solver: Solver, run: RunState) -> list[tuple[str, jax.Array]]:
    """Return the floating arrays that must stay finite: variables, model state, and the method's others."""
    others = {name: tree for name, tree in _fields(run.solver) if name not in solver.variables}
    trees = [
        *((name, getattr(run.solver, name)) for name in solver.variables),
        ("model state", run.model),
        *((f"memory of the {name} rule", others.pop(name, ())) for name in RULES),
        *others.items(),
    ]
    return [(name, leaf) for name, tree in trees for leaf in _floats(tree)]


def overflows(solver: Solver, run: RunState) -> Bool[Array, " variables"]:
    """Return whether each variable has blown up, so that its square overflows."""
    return jnp.stack(_largest([getattr(run.solver, name) for name in solver.variables])) > 1


def _fields(state: Any) -> list[tuple[str, PyTree]]:
    if is_dataclass(state):
        return [(field.name, getattr(state, field.name)) for field in fields(state)]
    names = getattr(state, "_fields", tuple(vars(state)) if hasattr(state, "__dict__") else ())
    return [(name, getattr(state, name)) for name in names]


class Watch:
    """Check of a run's variables and its other arrays. Some of the latter are infinite from the beginning."""

    def __init__(self, solver: Solver, run: RunState):
        self.solver = solver
        remembers = len(jax.tree.leaves(run.solver)) > len(
            jax.tree.leaves([getattr(run.solver, name) for name in solver.variables])
        )
        # None if there are only variables
        self._fine = _first_look(solver, run) if remembers or run.model is not None else None

    def look(self, run: RunState) -> np.ndarray:
        return np.asarray(self.solver.compiled(health)(run))

    def broken(self, flags: np.ndarray, run: RunState) -> list[str]:
        """Return the variables that are not finite. If there are none, return the first other broken part."""
        if flags.all():
            return []
        names = [name for name, _ in parts(self.solver, run)]
        bad = {name for name, fine in zip(names, flags, strict=True) if not fine}
        if variables := [name for name in self.solver.variables if name in bad]:
            return variables
        assert self._fine is not None
        changed = zip(names, flags, self._fine, strict=True)
        return [name for name, fine, before in changed if before and not fine][:1]


def grown(solver: Solver, run: RunState) -> list[str]:
    """Return the variables whose squares are about to overflow; in float16, those beyond 16."""
    sizes = jax.device_get(_largest([getattr(run.solver, name) for name in solver.variables]))
    return [name for name, size in zip(solver.variables, sizes, strict=True) if size > 1e-3]


def blown_up(solver: Solver, run: RunState, since: RunState) -> list[str]:
    """Return the variables whose squares overflow, and did not before."""
    now, then = (np.asarray(overflows(solver, at)) for at in (run, since))
    return [name for name, large in zip(solver.variables, now & ~then, strict=True) if large]


def run_away(solver: Solver, run: RunState, since: RunState) -> list[str]:
    """Return the arguments of the objectives that are larger than `FAR` times max(1, their earlier size)."""
    names = [name for name in solver.variables if name != "v"]
    now, then = (jax.device_get(_sizes([getattr(at.solver, name) for name in names])) for at in (run, since))
    return [name for name, a, b in zip(names, now, then, strict=True) if a > FAR * max(b, 1.0)]


def _first_look(solver: Solver, run: RunState) -> np.ndarray:
    leaves = [leaf for _, leaf in parts(solver, run)]
    if at_hand(leaves):
        return np.array([np.isfinite(np.asarray(leaf)).all() for leaf in leaves])
    return np.asarray(solver.compiled(health)(run))


@jax.jit
def _largest(trees: list[Any]) -> list[Any]:
    """Return the largest entry of each tree, relative to the largest number whose square is finite."""
    most = lambda leaf: max(float(jnp.finfo(leaf.dtype).max) ** 0.5, 16e3)
    share = lambda leaf: jnp.max(jnp.abs(leaf), initial=0.0).astype(float) / most(leaf)
    return [jnp.max(jnp.array([share(leaf) for leaf in _floats(tree)])) for tree in trees]


@jax.jit
def _sizes(trees: list[Any]) -> list[Any]:
    size = lambda leaf: jnp.max(jnp.abs(leaf), initial=0.0).astype(float)
    return [jnp.max(jnp.array([size(leaf) for leaf in _floats(tree)]), initial=0.0) for tree in trees]


def _floats(tree: PyTree) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def moved(before: PyTree, after: PyTree) -> bool:
    """Return whether a variable moved by more than rounding. Compare on the host, piece by piece."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return any(
        np.any(np.abs(old - new) > 4 * float(jnp.finfo(new.dtype).eps) * np.abs(new))
        for pair in pairs
        for old, new in zip(*map(_pieces, pair), strict=True)
    )


def _pieces(leaf: Any) -> Iterator[np.ndarray]:
    """Yield pieces of an array, flat. If it spans several processes, yield the part in this process."""
    whole = getattr(leaf, "is_fully_addressable", True)
    for part in [leaf] if whole else [shard.data for shard in leaf.addressable_shards]:
        flat = np.asarray(part).ravel()
        yield from (flat[i : i + PIECE] for i in range(0, flat.size, PIECE))


def narrow(run: RunState) -> str:
    """Return a note on the range of float16 if a variable has this dtype."""
    kinds = {leaf.dtype for leaf in _floats((run.x, run.y))}
    few = jnp.dtype("float16") in kinds
    return " float16 holds nothing above 65,504: bfloat16 and float32 do." if few else ""


def first_bad_row(rows: Columns) -> int | None:
    """Return the first row with an outer value that is not finite."""
    finite = np.isfinite(rows["outer_value"])
    return None if finite.all() else int(np.argmin(finite))


def bad_metric(rows: Columns) -> tuple[str, int] | None:
    """Return the first metric of an objective, or norm of h, that was not finite, and its row."""
    found = []
    for name, values in rows.items():
        ours = name.startswith(("inner/", "outer/", NORM)) and isinstance(values, np.ndarray)
        if ours and jnp.issubdtype(values.dtype, jnp.inexact) and values.ndim == 1:
            finite = np.isfinite(values)
            if not finite.all():
                found.append((int(np.argmin(finite)), name))
    return min(found)[::-1] if found else None


def bad_data(data: Any) -> str | None:
    """Return a sentence on the first array of the data with NaN or infinity, if there is one."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if isinstance(leaf, Tracer) or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            continue
        bad = int(jnp.sum(~jnp.isfinite(leaf)))
        if bad:
            where = BEFORE.sub("", jax.tree_util.keystr(path)).lstrip(".")
            return f"the data contain NaN or infinity ({bad} of {leaf.size} entries of {where})"
    return None


def risen(values: np.ndarray, taken: int) -> tuple[float, float] | None:
    """Return the start and the end of a blow-up of the outer value in `taken` steps, if there is one.

    There are two criteria:

    * Even the lowest of the last values is far above the first, and the values do not decrease steadily. This
      ignores one lucky batch at the start, and a y that suited f before it moved to y*(x).
    * For noisy values: the medians of the fifths of the run end far above the lowest median. Since then they
      have risen each time, and the last rise is the largest.
    """
    if taken < 10 or not len(values):
        return None
    last, count = _last(values), len(values)
    above = values[0] + 10 * abs(values[0])  # at least, to save the pass over all values
    if last.min() > above and last.min() > values[0] + _far(values) and not _calms(_medians(values)):
        return float(values[0]), float(np.median(last))
    # If no value of the last fifth is above all of the first, the last median is not above the first one.
    if count < 20 or values[-(count // 5) :].max() <= values[: -(-count // 5)].min():
        return None
    medians = _medians(values)
    since = medians[np.argmin(medians) :]
    rises = np.diff(since)
    steady = len(rises) > 1 and (rises > 0).all() and rises[-1] >= rises.max()
    beyond = since[-1] > max(medians[0], since[0] + _far(since))
    return (float(since[0]), float(since[-1])) if steady and beyond else None


def _medians(values: np.ndarray) -> np.ndarray:
    """Return the medians of the fifths of a run."""
    return np.array([np.median(part) for part in np.array_split(values, min(5, len(values)))])


def _calms(medians: np.ndarray) -> bool:
    """Return whether the values have decreased steadily since their highest fifth."""
    down = medians[np.argmax(medians) :]
    return bool(len(down) > 2 and (np.diff(down) < 0).all() and down[-1] < down[0] / 2)


def _last(values: np.ndarray) -> np.ndarray:
    return values[-max(min(3, len(values) - 1), 1, min(100, len(values) // 20)) :]


def _far(values: np.ndarray) -> float:
    """Return the distance that counts as far from the first value."""
    return 10 * max(abs(values[0]), np.abs(values).min())


def blow_up(trace: Columns, taken: int, suspicion: Callable[[], str]) -> str:
    """Return a sentence on a finite outer value that ended far from its start, else ""."""
    values = np.asarray(trace["outer_value"], dtype=float)
    if rise := risen(values, taken):
        why = (
            suspicion() or "as from step sizes that are too large, or as y left a start at which f was small."
        )
        return f" Its outer value rose from {rise[0]:.3g} to {rise[1]:.3g}, a finite blow-up: {why}"
    first, last = values[0], _last(values)
    fell = taken >= 10 and last.max() < first - 10 * abs(first) and last.max() < first - _far(values)
    if fell and (why := suspicion()):
        return f" Its outer value fell from {first:.3g} to {np.median(last):.3g}: {why}"
    return ""


def largest_measure(rows: Columns) -> float:
    """Return the largest finite stationarity measure in these rows, or 0."""
    values = np.asarray(rows.get("stationarity", rows.get(NORM, ())))
    finite = np.isfinite(values)
    return float(values.max(initial=0.0) if finite.all() else values[finite].max(initial=0.0))
