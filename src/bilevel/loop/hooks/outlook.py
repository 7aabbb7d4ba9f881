"""Course of a run in little memory, and a forecast of its status."""

from typing import NamedTuple

import numpy as np

from bilevel.loop.finite import NORM, blow_up

MOST = 512  # values kept per column, evenly spread over the run
FLAT = 1e-6  # relative change below which an outer value is constant
SLOPE = 1e-3  # relative change below which an outer value is level, between two quarters of the run


class History:
    """Rows of every `stride`-th step, and the newest row."""

    def __init__(self):
        self.stride, self.newest = 1, -1
        self.steps = np.empty(0, int)
        self.columns: dict[str, np.ndarray] = {}
        self.last: dict[str, float] = {}
        self.lowest: dict[str, float] = {}

    def add(self, first: int, rows: dict[str, np.ndarray]) -> None:
        """Add the rows of the steps from `first`. Drop rows of the same or later steps, which were undone."""
        if first <= self.newest:
            self._keep(self.steps < first)
        count = len(next(iter(rows.values())))
        new, self.newest = np.arange(-first % self.stride, count, self.stride), first + count - 1
        for name, column in rows.items():
            values = np.asarray(column, float)
            self.last[name] = float(values[-1])
            self.lowest[name] = float(np.fmin(np.fmin.reduce(values), self.lowest.get(name, np.inf)))
            if new.size:  # rarely, in a long run
                # A probe's number comes late: before, the course has its first value.
                before = self.columns.get(name, np.full(len(self.steps), values[0]))
                self.columns[name] = np.append(before, values[new])
        if new.size:
            self.steps = np.append(self.steps, first + new)
        while len(self.steps) > MOST:
            self.stride *= 2
            self._keep(self.steps % self.stride == 0)

    def _keep(self, which: np.ndarray) -> None:
        self.steps = self.steps[which]
        self.columns = {name: column[which] for name, column in self.columns.items()}

    def course(self, name: str) -> np.ndarray:
        """Return the column from the start to the newest row."""
        kept = len(self.steps) and self.steps[-1] == self.newest
        return self.columns[name] if kept else np.append(self.columns[name], self.last[name])


class Outlook(NamedTuple):
    """Forecast: a word, a sentence, and a mood: "good", "fine", "doubtful" or "bad"."""

    word: str
    sentence: str
    mood: str


def outlook(history: History, taken: int, tol: float | None = None) -> Outlook:
    """Judge a run by the rules of the final status, then by the last two quarters of its outer values."""
    value, norm = history.last["outer_value"], history.last.get(NORM, np.nan)
    if not np.isfinite(value):
        return Outlook("diverging", f"the outer value is {value}", "bad")
    course = history.course("outer_value")
    course = course[np.isfinite(course)]
    if risen := blow_up({"outer_value": course}, taken, lambda: ""):
        return Outlook("diverging", risen.strip(), "bad")
    measure = history.last.get("stationarity", norm)
    if tol is not None and measure <= tol:
        return Outlook("converged", f"{measure:.3g} is at most tol={tol:g}", "good")
    to_go = f"; {_times(measure / tol)} tol={tol:g}" if tol is not None and np.isfinite(measure) else ""
    half = course[-max(len(course) // 2, 1) :]
    if len(course) < 8:
        return Outlook("begun", f"{taken:,} steps taken{to_go}", "fine")
    if np.ptp(half) <= FLAT * np.abs(half).max():
        sentence = (
            "the outer value has not changed since half-way: x is stationary, or the steps are too small"
        )
        return Outlook("flat", f"{sentence}{to_go}", "doubtful")
    before, now = (float(np.median(part)) for part in np.array_split(half, 2))
    change = (now - before) / max(abs(before), abs(now))
    sentence = f"the outer value changed by {change:+.1%} over the last quarter of the steps{to_go}"
    if abs(change) <= SLOPE:
        return Outlook("level", sentence, "fine")
    return Outlook("falling", sentence, "good") if change < 0 else Outlook("rising", sentence, "doubtful")


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if 100 <= ratio < 1e6 else f"{ratio:.3g} times"
