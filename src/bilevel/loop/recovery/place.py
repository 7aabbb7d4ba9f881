"""Recovery data of a result: with `on_divergence="halve"` a run resumes as if it had never stopped."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bilevel.loop.data.loader_buffer import Mark
from bilevel.loop.state import RunState
from bilevel.loop.trace import Columns


class Seen(NamedTuple):
    """Outer values: the first, the smallest absolute value, and the last. NaN before the first step."""

    first: float = np.nan
    least: float = np.nan
    last: float = np.nan

    def after(self, rows: Columns) -> "Seen":
        """Return the values after the rows of further steps."""
        values = np.asarray(rows["outer_value"], dtype=float)
        first = values[0] if np.isnan(self.first) else self.first
        return Seen(float(first), float(np.fmin(self.least, np.abs(values).min())), float(values[-1]))


@dataclass(frozen=True)
class Place:
    """Earlier state of the run, to which it returns if it diverges."""

    step: int
    run: RunState
    seen: Seen  # up to that step
    taken: list[Any]  # a loader's batches since then, in memory
    mark: Mark | None = None  # on disk: the loader's position at that step
    rows: Columns | None = None  # of a thinned trace: all rows since then, and the one before


@dataclass(frozen=True)
class Recovery:
    """Outer values of the run, its number of halvings, and the place to return to."""

    seen: Seen
    count: int  # halvings that count toward the most that one run may have
    doubtful: int  # halvings in a row meant mostly for the outer level
    place: Place | None  # None: the run returns to the state of the result itself
