"""Whether a run is still sane: what is not finite, since when, and whose fault it may be."""

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
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
LOOK_AHEAD = 200  # steps, after only the loss has become infinite, within which a variable may follow
PIECE = 2**16
BEFORE = re.compile(r"^(\[\d+\])?\.data(\.stacked)?(?=\.)")  # the level: which of the batches that were kept
NORM = "hypergradient_norm"
RULES = ("inner", "adjoint", "outer", "auxiliary", "start")  # the state's fields that hold a rule's memory


def health(solver: Solver, run: RunState) -> Bool[Array, " flags"]:
    """Whether each floating array of the state's parts is finite."""
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for _, leaf in parts(solver, run)])


def parts(solver: Solver, run: RunState) -> list[tuple[str, jax.Array]]:
    """The floating arrays that must stay finite: the variables', the model state's, and all others of the method."""
    others = {name: tree for name, tree in _fields(run.solver) if name not in solver.variables}
    trees = [
        *((name, getattr(run.solver, name)) for name in solver.variables),
        ("model state", run.model),
        *((f"memory of the {name} rule", others.pop(name, ())) for name in RULES),
        *others.items(),
    ]
    return [(name, leaf) for name, tree in trees for leaf in _floats(tree)]


def overflows(solver: Solver, run: RunState) -> Bool[Array, " variables"]:
    """Whether each variable is so large that its square overflows: it has blown up, though it is finite."""
    return jnp.stack(_largest([getattr(run.solver, name) for name in solver.variables])) > 1


def _fields(state: Any) -> list[tuple[str, PyTree]]:
    """What the method's state is made of, by name."""
    if is_dataclass(state):
        return [(field.name, getattr(state, field.name)) for field in fields(state)]
    names = getattr(state, "_fields", tuple(vars(state)) if hasattr(state, "__dict__") else ())
    return [(name, getattr(state, name)) for name in names]


class Watch:
    """Looks at a run's variables and at all else its method keeps, of which some is infinite from the beginning."""

    def __init__(self, solver: Solver, run: RunState):
        self.solver = solver
        remembers = len(jax.tree.leaves(run.solver)) > len(
            jax.tree.leaves([getattr(run.solver, name) for name in solver.variables])
        )
        # None: there are variables alone
        self._fine = _first_look(solver, run) if remembers or run.model is not None else None

    def look(self, run: RunState) -> np.ndarray:
        return np.asarray(self.solver.compiled(health)(run))

    def broken(self, flags: np.ndarray, run: RunState) -> list[str]:
        """The variables that are not finite; if all are, the first of the rest that no longer is."""
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
    """Return the arguments of the objectives that are more than `FAR` times max(1, their earlier size)."""
    names = [name for name in solver.variables if name != "v"]
    now, then = (jax.device_get(_sizes([getattr(at.solver, name) for name in names])) for at in (run, since))
    return [name for name, a, b in zip(names, now, then, strict=True) if a > FAR * max(b, 1.0)]


def _first_look(solver: Solver, run: RunState) -> np.ndarray:
    """`health` where a run begins."""
    leaves = [leaf for _, leaf in parts(solver, run)]
    if at_hand(leaves):
        return np.array([np.isfinite(np.asarray(leaf)).all() for leaf in leaves])
    return np.asarray(solver.compiled(health)(run))


@jax.jit
def _largest(trees: list[Any]) -> list[Any]:
    """The largest entry of each tree, as a share of what its square could still be represented with."""
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
    """By more than rounding. On the host, piece by piece: of an x that has moved, the first piece says so."""
    pairs = zip(_at_hand(before), _at_hand(after), strict=True)
    for then, now in pairs:
        few = 4 * float(jnp.finfo(now.dtype).eps)
        for i in range(0, now.size, PIECE):
            old, new = then[i : i + PIECE], now[i : i + PIECE]
            if np.any(np.abs(old - new) > few * np.abs(new)):
                return True
    return False


def _at_hand(tree: PyTree) -> list[np.ndarray]:
    """Its leaves, flat; of one that several processes share, the parts that this one has."""
    whole = lambda leaf: getattr(leaf, "is_fully_addressable", True)
    parts = lambda leaf: [leaf] if whole(leaf) else [shard.data for shard in leaf.addressable_shards]
    return [np.asarray(part).ravel() for leaf in jax.tree.leaves(tree) for part in parts(leaf)]


def narrow(run: RunState) -> str:
    """That float16 ends early, if a variable is of that kind."""
    kinds = {leaf.dtype for leaf in _floats((run.x, run.y))}
    few = jnp.dtype("float16") in kinds
    return " float16 holds nothing above 65,504: bfloat16 and float32 do." if few else ""


def first_bad_row(rows: Columns) -> int | None:
    """The first step of these at which the outer value was not finite."""
    finite = np.isfinite(rows["outer_value"])
    return None if finite.all() else int(np.argmin(finite))


def bad_metric(rows: Columns) -> tuple[str, int] | None:
    """The first metric of an objective that was not finite, or h's norm, and at which of these steps."""
    found = []
    for name, values in rows.items():
        ours = name.startswith(("inner/", "outer/", NORM)) and isinstance(values, np.ndarray)
        if ours and jnp.issubdtype(values.dtype, jnp.inexact) and values.ndim == 1:
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                found.append((int(bad[0]), name))
    return min(found)[::-1] if found else None


def bad_data(data: Any) -> str | None:
    """A sentence that names the first array of the data with a NaN or an infinity in it, if there is one."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if isinstance(leaf, Tracer) or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            continue
        bad = int(jnp.sum(~jnp.isfinite(leaf)))
        if bad:
            where = BEFORE.sub("", jax.tree_util.keystr(path)).lstrip(".")
            return f"the data contain NaN or infinity ({bad} of {leaf.size} entries of {where})"
    return None


def risen(values: np.ndarray, taken: int) -> tuple[float, float] | None:
    """From where to where an outer value has blown up in so many steps, if it has.

    Either even the lowest of its last values is far above the first: one lucky batch at the start, among noisy ones, is
    no blow-up, nor is a y that suited f before it went to y*(x), from where f has come down ever since. Or, as noise
    may hide that, its medians over the fifths of the run end far above the lowest of them, with a rise from each to the
    next since then, the last one the largest.
    """
    if taken < 10 or not len(values):
        return None
    last, count = _last(values), len(values)
    medians = cache(lambda: np.array([np.median(part) for part in np.array_split(values, min(5, count))]))
    if last.min() > values[0] + _far(values) and not _calms(medians()):
        return float(values[0]), float(np.median(last))
    if count < 20:
        return None
    since = medians()[np.argmin(medians()) :]
    rises = np.diff(since)
    steady = len(rises) > 1 and (rises > 0).all() and rises[-1] >= rises.max()
    beyond = since[-1] > max(medians()[0], since[0] + _far(since))
    return (float(since[0]), float(since[-1])) if steady and beyond else None


def _calms(medians: np.ndarray) -> bool:
    """Return whether the values have come down steadily since their highest fifth."""
    down = medians[np.argmax(medians) :]
    return bool(len(down) > 2 and (np.diff(down) < 0).all() and down[-1] < down[0] / 2)


def _last(values: np.ndarray) -> np.ndarray:
    return values[-max(min(3, len(values) - 1), 1, min(100, len(values) // 20)) :]


def _far(values: np.ndarray) -> float:
    """What counts as far from the first of them."""
    return 10 * max(abs(values[0]), np.abs(values).min())


def blow_up(trace: Columns, taken: int, suspicion: Callable[[], str]) -> str:
    """Say that a finite outer value has ended far from its start after `taken` steps, if it has."""
    values = np.asarray(trace["outer_value"], dtype=float)
    if rise := risen(values, taken):
        why = (
            suspicion() or "as from step sizes that are too large, or as y left a start at which f was small."
        )
        return f" Its outer value rose from {rise[0]:.3g} to {rise[1]:.3g}, a finite blow-up: {why}"
    first, last = values[0], _last(values)
    if taken >= 10 and last.max() < first - _far(values) and (why := suspicion()):
        return f" Its outer value fell from {first:.3g} to {np.median(last):.3g}: {why}"
    return ""


def largest_measure(rows: Columns) -> float:
    """The largest finite stationarity measure among some steps; 0 if there is none."""
    values = np.asarray(rows.get("stationarity", rows.get(NORM, ())), float)
    return float(np.max(values, where=np.isfinite(values), initial=0.0))
