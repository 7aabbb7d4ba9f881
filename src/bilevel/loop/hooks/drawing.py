"""A run on a terminal: how far it is, its numbers with their trends, and how it stands. Fits any width."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bilevel.loop.hooks.outlook import Outlook

LEVELS, PLAIN = "▁▂▃▄▅▆▇█", "_.-~=+*#"  # the second for terminals without such letters
WIDE = 20.0  # the ratio of largest to smallest from which on a trend is logarithmic
STYLES = {"good": "green", "fine": "cyan", "doubtful": "yellow", "bad": "bold red"}
ROOMY, NARROW = 84, 44  # characters from which on all is shown, and below which only what is needed


@dataclass(frozen=True)
class Line:
    """A column of the trace: what it is called, and how it went."""

    title: str
    course: np.ndarray
    lowest: float


@dataclass(frozen=True)
class View:
    """What is seen of a run at one moment."""

    name: str
    step: int
    total: int
    seconds: float
    rate: float  # steps a second; NaN before it is known
    lines: list[Line]
    outlook: Outlook

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        width = options.max_width
        yield self._head(width)
        shown = self.lines[: max(console.height - 6, 1)]  # the rest would scroll the view away
        if shown:
            yield _table(shown, width)
        if more := len(self.lines) - len(shown):
            yield Text(f"and {more} more", style="dim", no_wrap=True, overflow="ellipsis")
        said = Text(overflow="fold")
        said.append(self.outlook.word, style=STYLES[self.outlook.mood])
        said.append(f": {self.outlook.sentence}" if self.outlook.sentence else "")
        yield said

    def _head(self, width: int) -> Table:
        head = _grid()
        bar = ProgressBar(
            max(self.total, 1),
            self.step,
            style="bright_black",
            complete_style="blue",
            finished_style="green",
        )
        cells: list[Any] = [Text(self.name, style="bold"), Text(f"{self.step:,}/{self.total:,}")]
        if width >= NARROW:
            cells.insert(1, bar)
            rate = Text(f"{_short(self.rate)} it/s" if np.isfinite(self.rate) else "compiling", style="dim")
            cells += [rate, Text(self._clock())]
        for cell in cells:
            head.add_column(
                no_wrap=True, overflow="ellipsis", ratio=1 if isinstance(cell, ProgressBar) else None
            )
        head.add_row(*cells)
        return head

    def _clock(self) -> str:
        left = (self.total - self.step) / self.rate if self.rate > 0 else np.nan
        if self.step >= self.total or not np.isfinite(left):
            return clock(self.seconds)
        return f"{clock(left)} left"


def _table(lines: list[Line], width: int) -> Table:
    table = _grid()
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(width // 3, 4))
    table.add_column(no_wrap=True, overflow="ellipsis", justify="right", min_width=min(10, width // 3))
    if width >= NARROW // 2:
        table.add_column(ratio=1, no_wrap=True)
    if width >= ROOMY:
        table.add_column(no_wrap=True, style="dim", overflow="ellipsis")
    for line in lines:
        now = line.course[-1]
        number = Text(f"{now:.4g}", style="cyan" if np.isfinite(now) else STYLES["bad"])
        lowest = f"from {line.course[0]:.4g}, lowest {line.lowest:.4g}"
        table.add_row(*[Text(line.title), number, Trend(line.course), Text(lowest)][: len(table.columns)])
    return table


def _grid() -> Table:
    return Table.grid(padding=(0, 1), expand=True)


class Trend:
    """A line of letters that rise and fall, as wide as there is room."""

    def __init__(self, course: np.ndarray):
        self.course = course

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        letters = PLAIN if options.ascii_only else LEVELS
        yield Text(
            trend(self.course, options.max_width, letters), style="blue", no_wrap=True, overflow="crop"
        )

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


def trend(course: np.ndarray, width: int, letters: str = LEVELS) -> str:
    """One letter for each of `width` stretches, by their means; x where a number is not finite."""
    stretches = np.array_split(course, max(min(width, len(course)), 1))
    means = np.array([np.mean(part) if np.isfinite(part).all() else np.nan for part in stretches])
    fine = means[np.isfinite(means)]
    if fine.size and fine.min() > 0 and fine.max() > WIDE * fine.min():
        means, fine = np.log(means), np.log(fine)
    low, high = (fine.min(), fine.max()) if fine.size else (0.0, 0.0)
    height = (means - low) / (high - low) if high > low else np.where(np.isfinite(means), 0.0, np.nan)
    place = lambda at: "x" if np.isnan(at) else letters[min(int(at * len(letters)), len(letters) - 1)]
    return "".join(place(at) for at in height)


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
