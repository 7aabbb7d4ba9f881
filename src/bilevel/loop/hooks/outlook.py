"""How a run stands before it has ended: what its status would say, and where its outer value is going."""

from typing import NamedTuple

import numpy as np

from bilevel.loop.finite import NORM, blow_up
from bilevel.loop.hooks.history import History

FLAT = 1e-6  # of itself: by no more has an outer value changed that stands still
SLOPE = 1e-3  # of itself, from one quarter of the run to the next


class Outlook(NamedTuple):
    """A word, a sentence, and how serious it is: "good", "fine", "doubtful" or "bad"."""

    word: str
    sentence: str
    mood: str


def outlook(history: History, taken: int, tol: float | None = None) -> Outlook:
    """By the rules of the status at the end, as far as the trace tells; then by the last two quarters of the run."""
    value, norm = history.last["outer_value"], history.last.get(NORM, np.nan)
    if not np.isfinite(value):
        return Outlook("diverging", f"the outer value is {value}", "bad")
    course = history.course("outer_value")
    course = course[np.isfinite(course)]
    if said := blow_up({"outer_value": course}, taken, lambda: ""):
        return Outlook("diverging", said.strip(), "bad")
    measure = history.last.get("stationarity", norm)
    if tol is not None and measure <= tol:
        return Outlook("converged", f"{measure:.3g} is at most tol={tol:g}", "good")
    to_go = f"; {_times(measure / tol)} tol={tol:g}" if tol is not None and np.isfinite(measure) else ""
    half = course[-max(len(course) // 2, 1) :]
    if len(course) < 8:
        return Outlook("begun", f"{taken:,} steps taken{to_go}", "fine")
    if np.ptp(half) <= FLAT * np.abs(half).max():
        return Outlook(
            "flat",
            f"the outer value has not changed since half-way: stationary, or steps too small{to_go}",
            "doubtful",
        )
    before, now = (float(np.median(part)) for part in np.array_split(half, 2))
    change = (now - before) / max(abs(before), abs(now))
    word, mood = (
        ("falling", "good")
        if change < -SLOPE
        else ("rising", "doubtful")
        if change > SLOPE
        else ("level", "fine")
    )
    return Outlook(
        word, f"the outer value changed by {change:+.1%} over the last quarter of the steps{to_go}", mood
    )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if 100 <= ratio < 1e6 else f"{ratio:.3g} times"
