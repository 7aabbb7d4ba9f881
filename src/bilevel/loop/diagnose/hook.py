"""Hook that examines a run a few times and reports its findings."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.diagnose.findings import SILENT, Evidence, Record, findings
from bilevel.loop.diagnose.measurements import Point, brief_look, close_look, look_beside
from bilevel.loop.diagnose.report import Diagnosis
from bilevel.loop.diagnose.standstill import small_share
from bilevel.loop.diagnose.steps import attempt, look_at_scale, may_be_scale_free
from bilevel.loop.finite import risen
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event
from bilevel.solvers.parts.ritz import ritz_values
from bilevel.words import shown

SHARE = 0.02  # of the gradients and products, for looks after the first few; the share of the time is larger
FEW, MOST = 4, 20  # looks
GRADIENTS = ("inner_residual", "outer_gradient", "stationarity")  # columns
STEPS = ("inner_step", "adjoint_step", "outer_step")  # likewise
ARRAYS = ("ritz", "free", "x_moves")  # parts of a look that are no numbers
STEP = 4  # gradients and products that the cheapest step takes


@contextmanager
def _nan_allowed() -> Iterator[None]:
    """Allow NaN, the mark of a missing number, also for users who debug NaN."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


class Diagnose(Hook):
    """Examine a run a few times and report findings in `result.diagnosis`; `bl.RunOptions(diagnose=True)`.

    It runs between chunks and changes no bit of the result. Every run gets four looks, at the quarters of its
    steps, or at an earlier end. It gets up to twenty if all of them cost at most 2 % of the gradients and
    products of its steps. A look that fails becomes a note, never an error. A diagnosis covers the steps of
    one call of `bl.run`, and those before a checkpoint that the call resumes. If the resumed run had already
    ended, it covers the end.
    """

    of_one_run = True  # not of a sweep
    reads_info = False
    steers = False

    def __init__(self):
        self._record = Record()
        self._remembered: dict[str, Any] | None = None  # from a checkpoint
        self._total = self._due = 0
        self.stride: int | None = 1  # a chunk ends at the next look
        self._names: list[str] = []  # of the arrays of x
        self._small = 0.0  # share of the largest hypergradient that may be rounding
        self._rise: tuple[float, float] | None = None  # of f, known at the end
        self._before: Any = None  # a Point
        self._event: Any = None
        self._solver: Any = None

    @property
    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of the run so far."""
        record, rows = self._record, self._record.rows
        names = dict.fromkeys(["step", *(name for row in rows for name in row)])
        looks = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
        solver, notes = self._solver, tuple(record.notes)
        if not rows:
            return Diagnosis((), looks, notes, solver.name if solver else "")
        evidence = Evidence(solver, looks, record, self._names, self._small, self._rise)
        return Diagnosis(findings(evidence), looks, notes, solver.name)

    def get_state(self) -> dict[str, Any]:
        return dict(vars(self._record))

    def set_state(self, state: dict[str, Any]) -> None:
        self._remembered = state

    @_nan_allowed()
    def begin(self, event: Event) -> None:
        earlier = self._remembered if event.step else None
        Diagnose.__init__(self)
        self._event, self._solver = event, event.solver
        self._total, self._small = event.total, small_share(event.run.x)
        arrays = jax.tree_util.tree_leaves_with_path(event.run.x)
        self._names = [f"x{jax.tree_util.keystr(path)}" for path, _ in arrays]
        known = {"began": event.step, "moves": [earlier is not None] * len(arrays)}
        self._record = Record(**known | (earlier or {}))  # an older checkpoint has no moves
        unknown = _unknown(event.run.x)
        # A checkpoint has no x of the last look. A run that has ended has no x of its start.
        x = event.run.x if earlier is None and event.step < event.total else unknown
        self._before = Point(jax.tree.map(jnp.copy, x), unknown)
        self._plan_look(event.step)

    def __call__(self, event: Event) -> None:
        self._event, self._solver = event, event.solver
        self._record.note_norms(event.trace)
        if event.step >= self._due:
            self._look(event.step)
            self._plan_look(event.step)

    def broke(self, cause: str, levels: tuple[str, ...]) -> None:
        self._record.broke = cause, levels

    def end(self, result: Any) -> None:
        """Take a last look at the end of the run, and release the run's arrays."""
        rows, record = self._record.rows, self._record
        if self._event is not None and result.steps and not (rows and rows[-1]["step"] >= result.steps):
            self._look(result.steps)
        self._event = self._before = None
        if not result.steps:
            return
        record.note_norms(result.trace)  # also of earlier calls, with which a resumed run is compared
        if record.began == result.steps:  # the run had ended, and its trace has all steps
            record.began = 0
        steps = np.asarray(result.trace.get("step", np.arange(result.steps)))
        values = np.asarray(result.trace["outer_value"], float)[steps >= record.began]
        self._rise = risen(values[np.isfinite(values)], result.steps - record.began)

    @_nan_allowed()
    def forget(self, step: int) -> None:
        """Drop the looks after this step. Their step sizes no longer apply."""
        record = self._record
        record.rows = [row | dict.fromkeys(STEPS, math.nan) for row in record.rows if row["step"] <= step]
        record.largest = record.steepest = 0.0  # the remaining trace has them again
        self._before = _unknown(self._before)
        self._plan_look(step)

    def _plan_look(self, step: int) -> None:
        """Plan the next look: at the next quarter of the run, or earlier if the share allows it."""
        record, steps = self._record, self._total - self._record.began
        quarter = max(-(-steps // FEW), 1)
        mark = record.began + ((step - record.began) // quarter + 1) * quarter
        if record.rows:
            another = record.spent / len(record.rows)
            paid = record.began + math.ceil((record.spent + another) / SHARE)
            mark = min(mark, max(paid, step + -(-steps // MOST)))
        self._due = min(mark, self._total)
        self.stride: int | None = max(self._due, 1)

    @_nan_allowed()
    def _measure(self, function: Any, *arguments: Any) -> Any:
        return self._event.measure(function, *arguments)

    def _look(self, step: int) -> None:
        record = self._record
        for look in [close_look, brief_look] if self._solver.second_order else [brief_look]:
            try:
                seen, before = self._measure(look, self._before)
                record.rows.append({"step": step} | _row(jax.device_get(seen)) | self._beside(seen))
            except Exception as error:  # an objective, a rule or the device may refuse
                what = "look" if look is brief_look else "close look"
                note = f"no {what} was possible: {type(error).__name__}, {shown(str(error))}"
                record.notes = [*dict.fromkeys([*record.notes, note])]  # each once
            else:
                if len(record.rows) == 1 and may_be_scale_free(self._solver):
                    record.scaled = attempt(self._scaled_arrays, default=[])
                self._before, record.spent = before, record.spent + 1 + record.rows[-1]["calls"] / STEP
                return

    def _scaled_arrays(self) -> list[str]:
        seen = jax.device_get(self._measure(look_at_scale))
        scales = seen["scales"] & seen["free"]
        return [name for name, does in zip(self._names, scales, strict=True) if does]

    def _beside(self, seen: dict[str, Any]) -> dict[str, float]:
        """Examine a nearby point if a gradient is exactly zero, also in most of y or in an array of x."""
        some = float(seen.get("outer_silent", 0)) <= SILENT
        self._record.note_moves(seen["x_moves"])
        if some and all(self._record.moves) and all(float(seen.get(name, np.nan)) != 0 for name in GRADIENTS):
            return {}
        beside = attempt(lambda: jax.device_get(self._measure(look_beside)))
        self._record.note_moves(True if beside is None else beside["x_moves"])
        return {} if beside is None else _row(beside)


def _unknown(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), tree)


def _row(seen: dict[str, Any]) -> dict[str, float]:
    row = {name: float(value) for name, value in seen.items() if name not in ARRAYS}
    if "ritz" in seen:
        values = ritz_values(*seen["ritz"])
        # Where y is held or frozen, the smallest one belongs to a direction in which y cannot move.
        mu, L = float(values[0]) if seen["free"] else math.nan, float(values[-1])
        condition = math.inf if mu <= 0 else L / mu
        row |= {"smallest_curvature": mu, "largest_curvature": L, "condition": condition}
    return row
