"""What a result keeps so that a run with `on_divergence="halve"` can resume as if it had never stopped."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bilevel.loop.data.loader_buffer import Mark
from bilevel.loop.state import RunState
from bilevel.loop.trace import Columns


class Seen(NamedTuple):
    """Outer values: the first one, the smallest absolute value, and the last one. NaN before the first step."""

    first: float = np.nan
    least: float = np.nan
    last: float = np.nan

    def after(self, rows: Columns) -> "Seen":
        """With the rows of further steps."""
        values = np.asarray(rows["outer_value"], dtype=float)
        first = values[0] if np.isnan(self.first) else self.first
        return Seen(float(first), float(np.fmin(self.least, np.abs(values).min())), float(values[-1]))


@dataclass(frozen=True)
class Place:
    """An earlier state of the run, to which it goes back if it diverges."""

    step: int
    run: RunState
    seen: Seen  # up to there
    taken: list[Any]  # a loader's batches since then, in memory
    mark: Mark | None = None  # on disk: where the loader was then
    rows: Columns | None = None  # of a thinned trace: all rows since then, and the one before


@dataclass(frozen=True)
class Recovery:
    """What the run has seen, how often it halved its steps, and the place to go back to."""

    seen: Seen
    count: int  # halvings that count toward the most that one run may have
    doubtful: int  # halvings in a row that were meant mostly for the outer level
    place: Place | None  # None: the run goes back to the state of the result itself
