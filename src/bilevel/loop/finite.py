"""Checks of a run: which parts are not finite, since when, and the possible cause."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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
    trees: dict[str, Any] = {name: getattr(run.solver, name) for name in solver.variables}
    trees |= {"model state": run.model} | {f"memory of the {name} rule": [] for name in RULES}
    for path, leaf in jax.tree_util.tree_leaves_with_path(run.solver):
        name = jax.tree_util.keystr(path[:1], simple=True)
        if name not in solver.variables:
            trees.setdefault(f"memory of the {name} rule" if name in RULES else name, []).append(leaf)
    return [(name, leaf) for name, tree in trees.items() for leaf in _floats(tree)]


class Watch:
    """Check of a run's variables and its other arrays. Some of the latter are infinite from the beginning."""

    def __init__(self, solver: Solver, run: RunState):
        self.solver = solver
        names, leaves = zip(*parts(solver, run), strict=True)
        if set(names) <= set(solver.variables):  # they are finite at the start
            self._fine = np.ones(len(names), bool)
        elif at_hand([*leaves]):
            self._fine = np.array([np.isfinite(np.asarray(leaf)).all() for leaf in leaves])
        else:
            self._fine = self.look(run)

    def look(self, run: RunState) -> np.ndarray:
        return np.asarray(self.solver.compiled(health)(run))

    def broken(self, flags: np.ndarray, run: RunState) -> list[str]:
        """Return the variables that are not finite. If there are none, return the first other broken part."""
        if flags.all():
            return []
        names = [name for name, _ in parts(self.solver, run)]
        bad = [(name, was) for name, fine, was in zip(names, flags, self._fine, strict=True) if not fine]
        variables = [name for name in self.solver.variables if name in dict(bad)]
        return variables or [name for name, was_fine in bad if was_fine][:1]


def overflows(solver: Solver, run: RunState) -> Bool[Array, " variables"]:
    """Return whether each variable has blown up, so that its square overflows."""
    return _sizes_of(solver, run)[:, 1] > 1


def grown(solver: Solver, run: RunState) -> list[str]:
    """Return the variables whose squares are about to overflow; in float16, those beyond 16."""
    return _named(solver, np.asarray(_sizes_of(solver, run))[:, 1] > 1e-3)


def blown_up(solver: Solver, run: RunState, since: RunState) -> list[str]:
    """Return the variables whose squares overflow, and did not before."""
    return _named(solver, overflows(solver, run) & ~overflows(solver, since))


def run_away(solver: Solver, run: RunState, since: RunState) -> list[str]:
    """Return the arguments of the objectives that are larger than `FAR` times max(1, their earlier size)."""
    now, then = (np.asarray(_sizes_of(solver, at))[:, 0] for at in (run, since))
    return [name for name in _named(solver, now > FAR * np.maximum(then, 1)) if name != "v"]


def _named(solver: Solver, flags: Any) -> list[str]:
    return [name for name, flag in zip(solver.variables, np.asarray(flags), strict=True) if flag]


def _sizes_of(solver: Solver, run: RunState) -> jax.Array:
    return _sizes([getattr(run.solver, name) for name in solver.variables])


@jax.jit
def _sizes(trees: list[Any]) -> jax.Array:
    """Return the largest entry of each tree, and its share of the largest number whose square is finite."""

    def sizes(leaf: jax.Array) -> jax.Array:
        size = jnp.max(jnp.abs(leaf), initial=0.0).astype(float)
        return jnp.stack([size, size / max(float(jnp.finfo(leaf.dtype).max) ** 0.5, 16e3)])

    return jnp.stack([jnp.max(jnp.stack([*map(sizes, _floats(tree))]), axis=0) for tree in trees])


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
    few = jnp.dtype("float16") in {leaf.dtype for leaf in _floats((run.x, run.y))}
    return " float16 holds nothing above 65,504: bfloat16 and float32 do." if few else ""


def first_bad_row(rows: Columns, name: str = "outer_value") -> int | None:
    """Return the first row with a value that is not finite."""
    finite = np.isfinite(rows[name])
    return None if finite.all() else int(np.argmin(finite))


def bad_metric(rows: Columns) -> tuple[str, int] | None:
    """Return the first metric of an objective, or norm of h, that was not finite, and its row."""
    is_column = lambda a: isinstance(a, np.ndarray) and a.ndim == 1 and jnp.issubdtype(a.dtype, jnp.inexact)
    ours = [name for name in rows if name.startswith(("inner/", "outer/", NORM)) and is_column(rows[name])]
    found = [(row, name) for name in ours if (row := first_bad_row(rows, name)) is not None]
    row, name = min(found, default=(0, ""))
    return (name, row) if found else None


def bad_data(data: Any) -> str | None:
    """Return a sentence on the first array of the data with NaN or infinity, if there is one."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        if floating and (bad := int(jnp.sum(~jnp.isfinite(leaf)))):
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
    if not last.min() > values[0] + 10 * abs(values[0]):
        # Bounds of the medians show for most runs that the last one is not far above the others.
        high = values[-(count // 5) :].max()
        if count < 20 or high <= max(values[: -(-count // 5)].min(), 11 * values.min()):
            return None
    medians = np.array([np.median(part) for part in np.array_split(values, min(5, count))])
    down, since = medians[np.argmax(medians) :], medians[np.argmin(medians) :]
    calms = len(down) > 2 and (np.diff(down) < 0).all() and down[-1] < down[0] / 2
    if last.min() > values[0] + _far(values) and not calms:
        return float(values[0]), float(np.median(last))
    rises = np.diff(since)
    steady = len(rises) > 1 and (rises > 0).all() and rises[-1] >= rises.max()
    beyond = since[-1] > max(medians[0], since[0] + _far(since))
    return (float(since[0]), float(since[-1])) if count >= 20 and steady and beyond else None


def _last(values: np.ndarray) -> np.ndarray:
    return values[-max(min(3, len(values) - 1), 1, min(100, len(values) // 20)) :]


def _far(values: np.ndarray) -> float:
    """Return the distance that counts as far from the first value."""
    return 10 * max(abs(values[0]), np.abs(values).min())


def blow_up(trace: Columns, taken: int, suspicion: Callable[[], str]) -> str:
    """Return a sentence on a finite outer value that ended far from its start, else ""."""
    values = np.asarray(trace["outer_value"], dtype=float)
    if rise := risen(values, taken):
        steps = "as from step sizes that are too large, or as y left a start at which f was small."
        why = suspicion() or steps
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
