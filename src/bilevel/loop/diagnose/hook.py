"""Looks at a run now and then, and says in words what stands out."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.diagnose.context import FALLEN, Facts, small_share
from bilevel.loop.diagnose.findings import SILENT, findings
from bilevel.loop.diagnose.measurements import Point, brief_look, close_look, look_beside
from bilevel.loop.diagnose.report import Diagnosis
from bilevel.loop.diagnose.scale import inner_transformation, look_at_scale
from bilevel.loop.finite import risen
from bilevel.loop.hooks.base import Event, Hook
from bilevel.solvers.parts.ritz import ritz_values
from bilevel.words import shown

SHARE = 0.02  # of the gradients and products, for the looks beyond the first few; of the time it is more
FEW, MOST = 4, 20  # looks
GRADIENTS = ("inner_residual", "outer_gradient", "stationarity")  # columns
STEPS = ("inner_step", "adjoint_step", "outer_step")  # likewise
ARRAYS = ("ritz", "free", "x_moves")  # what a look has besides numbers
KEPT = ("rows", "began", "spent", "largest", "steepest", "broke", "moves", "scaled")  # by a checkpoint
STEP = 4  # gradients and products that the cheapest step takes


class Diagnose(Hook):
    """Looks at the run a few times, and says in `result.diagnosis` what stands out; `bl.RunOptions(diagnose=True)`.

    Between chunks, so that not a bit of the result changes. Every run gets four looks, at the quarters of its steps, or
    where it ends earlier; and more, up to twenty, as long as all together cost at most 2 % of the gradients and
    products of its steps. A look that cannot be taken is a note, never an error. It covers the steps of one call of
    `bl.run`, and those before a checkpoint that the call goes on from; of a run that had ended, the end.
    """

    of_one_run = True  # not of a sweep
    reads_info = False
    steers = False

    def __init__(self):
        self._rows: list[dict[str, float]] = []
        self._notes: dict[str, None] = {}  # in their order, each once
        self._began = self._total = self._due = 0
        self._spent = self._largest = self._steepest = 0.0
        self._moves: list[bool] = []  # by array of x: whether a hypergradient that was not zero was seen
        self._names: list[str] = []  # of these arrays
        self._scaled: list[str] = []  # those that only scale g, under a rule that is scale-free
        self._small = FALLEN  # the share of the largest hypergradient that is rounding
        self._rise: tuple[float, float] | None = None  # of f, known at the end
        self._broke: tuple[str, tuple[str, ...]] | None = None  # of a run that diverged
        self._remembered: dict[str, Any] | None = None  # what a checkpoint gave back
        self._before: Any = None  # a Point
        self._event: Any = None
        self._solver: Any = None

    @property
    def stride(self) -> int:
        """The step of the next look: a chunk ends there."""
        return max(self._due, 1)

    @property
    def diagnosis(self) -> Diagnosis:
        """Of what was seen so far."""
        names = dict.fromkeys(["step", *(name for row in self._rows for name in row)])
        looks = {name: np.array([row.get(name, math.nan) for row in self._rows]) for name in names}
        if not self._rows:
            return Diagnosis((), looks, tuple(self._notes), self._solver.name if self._solver else "")
        noisy = bool(self._rows[-1]["noisy"])
        steps = int(self._rows[-1]["step"]) - self._began
        blind = self._steepest == 0
        idle = tuple(name for name, moves in zip(self._names, self._moves, strict=True) if not moves)
        seen = self._largest, blind, self._rise, self._broke, idle, tuple(self._scaled), self._small
        facts = Facts(self._solver, steps, self._began, noisy, *seen)
        return Diagnosis(findings(looks, facts), looks, tuple(self._notes), self._solver.name)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {name: getattr(self, f"_{name}") for name in KEPT} | {"notes": list(self._notes)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._remembered = state

    def begin(self, event: Event) -> None:
        earlier = self._remembered if event.step else None
        Diagnose.__init__(self)
        self._event, self._solver = event, event.solver
        self._began, self._total, self._small = event.step, event.total, small_share(event.run.x)
        arrays = jax.tree_util.tree_leaves_with_path(event.run.x)
        self._names = [f"x{jax.tree_util.keystr(path)}" for path, _ in arrays]
        self._moves = [earlier is not None] * len(arrays)  # an older checkpoint does not say
        for name, value in (earlier or {}).items():
            setattr(self, f"_{name}", dict.fromkeys(value) if name == "notes" else value)
        unknown = _unknown(event.run.x)
        # How far x has come since the last look, or in all if the run has ended, a checkpoint does not say.
        x = event.run.x if earlier is None and event.step < event.total else unknown
        with _nan_allowed():
            self._before = Point(jax.tree.map(jnp.copy, x), unknown)
        self._due = self._next(event.step)

    def __call__(self, event: Event) -> None:
        self._event, self._solver = event, event.solver
        self._note_norms(event.trace)
        if event.step >= self._due:
            self._look(event.step)
            self._due = self._next(event.step)

    def broke(self, cause: str, levels: tuple[str, ...]) -> None:
        """The run has diverged: what its status says, and the levels whose step sizes that is about."""
        self._broke = cause, levels

    def end(self, result: Any) -> None:
        """A last look where the run ended. Nothing is kept that would keep the run."""
        if self._event is not None and result.steps and not self._seen(result.steps):
            self._look(result.steps)
        self._event = self._before = None
        if not result.steps:
            return
        self._note_norms(result.trace)  # also those of earlier calls, which a run that goes on is measured by
        if self._began == result.steps:  # it had ended, and its trace is of all of it
            self._began = 0
        steps = np.asarray(result.trace.get("step", np.arange(result.steps)))
        values = np.asarray(result.trace["outer_value"], float)[steps >= self._began]
        self._rise = risen(values[np.isfinite(values)], result.steps - self._began)

    def _note_norms(self, trace: dict[str, Any]) -> None:
        norms = trace["hypergradient_norm"]
        self._steepest = _larger(self._steepest, norms)
        self._largest = _larger(self._largest, trace.get("stationarity", norms))

    def _seen(self, step: int) -> bool:
        return bool(self._rows) and self._rows[-1]["step"] >= step

    def forget(self, step: int) -> None:
        """What was seen of the steps after this one, from which the run went back; the step sizes are others now."""
        self._rows = [row | dict.fromkeys(STEPS, math.nan) for row in self._rows if row["step"] <= step]
        self._largest = self._steepest = 0.0  # the trace of what is left has them again
        self._before = _unknown(self._before)
        self._due = self._next(step)

    def _next(self, step: int) -> int:
        """The next quarter of the run, or sooner if that is within the share."""
        steps = self._total - self._began
        quarter = max(-(-steps // FEW), 1)
        mark = self._began + ((step - self._began) // quarter + 1) * quarter
        if self._rows:
            another = self._spent / len(self._rows)
            paid = self._began + math.ceil((self._spent + another) / SHARE)
            mark = min(mark, max(paid, step + -(-steps // MOST)))
        return min(mark, self._total)

    def _look(self, step: int) -> None:
        for look in [close_look, brief_look] if self._solver.second_order else [brief_look]:
            try:
                with _nan_allowed():
                    seen, before = self._event.measure(look, self._before)
                self._rows.append({"step": step} | _row(jax.device_get(seen)) | self._beside(seen))
            except Exception as error:  # whatever an objective, a rule or the device has against it
                what = "look" if look is brief_look else "close look"
                self._notes[f"no {what} was possible: {type(error).__name__}, {shown(str(error))}"] = None
            else:
                self._look_at_scale()
                self._before, self._spent = before, self._spent + 1 + self._rows[-1]["calls"] / STEP
                return

    def _look_at_scale(self) -> None:
        """At the first look: it is a matter of how the objectives and the rule are made."""
        if len(self._rows) > 1 or inner_transformation(self._solver) is None:
            return
        with suppress(Exception), _nan_allowed():  # a rule or an objective that cannot be called so
            seen = jax.device_get(self._event.measure(look_at_scale))
            found = zip(self._names, seen["scales"], strict=True)
            self._scaled = [name for name, scales in found if scales and seen["free"]]

    def _beside(self, seen: dict[str, Any]) -> dict[str, float]:
        """A gradient that is exactly zero, or in most of y, or an array of x, is rare enough for a second look."""
        some = float(seen.get("outer_silent", 0)) <= SILENT
        self._note_moves(seen["x_moves"])
        if some and all(self._moves) and all(float(seen.get(name, np.nan)) != 0 for name in GRADIENTS):
            return {}
        with suppress(Exception), _nan_allowed():
            beside = jax.device_get(self._event.measure(look_beside))
            self._note_moves(beside["x_moves"])
            return _row(beside)
        self._note_moves(True)  # a method that calls its objectives otherwise: nothing is known
        return {}

    def _note_moves(self, seen: Any) -> None:
        self._moves = np.logical_or(self._moves, seen).tolist()


def _larger(most: float, values: Any) -> float:
    values = np.asarray(values, float)
    return max(most, float(np.max(values, where=np.isfinite(values), initial=0.0)))


@contextmanager
def _nan_allowed() -> Iterator[None]:
    """NaN says here that something could not be measured, also to those who debug NaN."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def _unknown(tree: Any) -> Any:
    with _nan_allowed():
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), tree)


def _row(seen: dict[str, Any]) -> dict[str, float]:
    row = {name: float(value) for name, value in seen.items() if name not in ARRAYS}
    if "ritz" in seen:
        values = ritz_values(*seen["ritz"])
        # Where y is held or frozen, the smallest one is that of a direction in which it cannot move.
        mu, L = float(values[0]) if seen["free"] else math.nan, float(values[-1])
        condition = math.inf if mu <= 0 else L / mu
        row |= {"smallest_curvature": mu, "largest_curvature": L, "condition": condition}
    return row
