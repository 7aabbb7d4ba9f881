"""Pictures of a run for terminals of any width and for notebooks, drawn by rich."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bilevel.loop.hooks.outlook import Outlook
from bilevel.words import one_line, printable

LEVELS, PLAIN = "▁▂▃▄▅▆▇█", "_.-~=+*#"  # the second for ASCII terminals
WIDE = 20.0  # a trend is logarithmic if its largest value exceeds its smallest by more than this factor
STYLES = {"good": "green", "fine": "cyan", "doubtful": "yellow", "bad": "bold red"}
NARROW, MEDIUM, ROOMY = 44, 60, 84  # characters; below the first, only the name and the count are drawn
NOTEBOOK = 96  # characters, the width in a notebook
MINUTE = 60.0  # seconds between two lines where there is neither


@dataclass(frozen=True)
class Line:
    """Column of the trace. It is drawn as its trend, as wide as there is room."""

    title: str
    course: np.ndarray  # the values so far
    lowest: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        levels = PLAIN if options.ascii_only else LEVELS
        yield Text(trend(self.course, options.max_width, levels), style="blue", no_wrap=True, overflow="crop")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


@dataclass(frozen=True)
class View:
    """Bar with the position of a run. Below it are its numbers with their trends, and the outlook, if any."""

    name: str
    step: int
    total: int
    seconds: float
    rate: float  # steps per second; NaN while the program compiles
    lines: Sequence[Line] = ()
    outlook: Outlook | None = None
    numbers: str = ""  # in the line of the bar
    probed: Mapping[str, float] = field(default_factory=dict)  # newest numbers of probes, for a log

    def in_words(self) -> str:
        """Return one line for a log."""
        probed = (f"{one_line(name)} {value:.4g}" for name, value in self.probed.items())
        speed = (self._speed(), f"{self._left()} left") if self._left() else ()
        place = f"{self.name} {self.step:,}/{self.total:,} in {clock(self.seconds)}"
        return ", ".join([place, *speed, self.numbers, *probed])

    def _speed(self) -> str:
        rate = f"{self.rate:,.0f}" if self.rate >= 10 else f"{self.rate:.2g}"
        return f"{rate} it/s" if np.isfinite(self.rate) else "compiling"

    def _left(self) -> str:
        """Return the time until the end, or "" if it is unknown or past."""
        left = (self.total - self.step) / self.rate if self.rate > 0 else np.nan
        return clock(left) if self.step < self.total and np.isfinite(left) else ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        yield self._head(options)
        shown = self.lines[: max(console.height - 6, 1)]  # more would scroll the view out of sight
        if shown:
            yield _table(shown, options.max_width)
        if more := len(self.lines) - len(shown):
            yield Text(f"and {more} more", style="dim", no_wrap=True, overflow="ellipsis")
        if self.outlook is not None:
            word, sentence, mood = self.outlook
            text = Text(word, style=STYLES[mood], overflow="fold")
            yield text.append(
                printable(f": {sentence}", options) if sentence else "", style="not bold default"
            )

    def _head(self, options: ConsoleOptions) -> Table:
        cells: list[Any] = [Text(self.name, style="bold"), Text(f"{self.step:,}/{self.total:,}")]
        if options.max_width >= NARROW:
            bar = ProgressBar(max(self.total, 1), self.step, complete_style="blue", finished_style="green")
            time = f"{self._left()} left" if self._left() else clock(self.seconds)
            cells = [cells[0], bar, cells[1], Text(self._speed(), style="dim"), Text(time)]
        if self.numbers and options.max_width >= MEDIUM:
            cells.append(Text(printable(self.numbers, options), style="cyan"))
        table = _grid()
        for cell in cells:
            ratio = 1 if isinstance(cell, ProgressBar) else None
            table.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio)
        table.add_row(*cells)
        return table


def _table(lines: Sequence[Line], width: int) -> Table:
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
        table.add_row(*[Text(line.title), number, line, Text(lowest)][: len(table.columns)])
    return table


def _grid() -> Table:
    return Table.grid(padding=(0, 1), expand=True)


def trend(course: np.ndarray, width: int, levels: str = LEVELS) -> str:
    """Return one character for the mean of each of `width` stretches; x where a number is not finite."""
    stretches = np.array_split(course, max(min(width, len(course)), 1))
    means = np.array([np.mean(part) if np.isfinite(part).all() else np.nan for part in stretches])
    finite = means[np.isfinite(means)]
    if finite.size and finite.min() > 0 and finite.max() > WIDE * finite.min():
        means, finite = np.log(means), np.log(finite)
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    height = (means - low) / (high - low) if high > low else np.where(np.isfinite(means), 0.0, np.nan)
    level = lambda at: "x" if np.isnan(at) else levels[min(int(at * len(levels)), len(levels) - 1)]
    return "".join(level(at) for at in height)


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def is_terminal(stream: Any) -> bool:
    """Return whether a stream writes to a terminal. It may be None or closed."""
    return stream is not None and not getattr(stream, "closed", False) and stream.isatty()


class Screen(NamedTuple):
    """Place to draw on: functions that replace the last picture, and that release the place."""

    show: Callable[[Any], None]
    close: Callable[[], None]


def screen(console: Console, logs: bool) -> Screen | None:
    """Return the terminal or the notebook's cell of a console. If it has neither, return its log, or None."""
    if console.is_jupyter:
        return _cell()
    if not console.is_terminal:
        return _log(console.file) if logs else None
    # Other output appears above the region. Redirect only what would appear on the same terminal, not files.
    out, err = is_terminal(sys.stdout), is_terminal(sys.stderr)
    region = Live(console=console, auto_refresh=False, redirect_stdout=out, redirect_stderr=err)
    region.start()
    return Screen(lambda picture: region.update(picture, refresh=True), region.stop)


def _log(file: Any) -> Screen:
    """Write one line per minute; in the end also the last picture, if there were lines before."""
    shown: list[View] = []  # the last picture
    written: list[View] = []  # the last one in the log

    def write(view: View) -> None:
        written[:] = [view]
        print(printable(view.in_words(), file), file=file, flush=True)

    def show(view: View) -> None:
        shown[:] = [view]
        if view.seconds - (written[0].seconds if written else 0.0) >= MINUTE:
            write(view)

    return Screen(show, lambda: write(shown[0]) if written and written != shown else None)


def _cell() -> Screen:
    """Replace one output of a notebook, which stays at the end and needs no widgets."""
    from IPython.display import display  # pyright: ignore[reportMissingImports]

    output: Any = display({"text/plain": ""}, raw=True, display_id=True)
    frame = '<pre style="line-height:1.3;white-space:pre">{code}</pre>'

    def show(picture: Any) -> None:
        console = Console(file=StringIO(), record=True, width=NOTEBOOK, force_jupyter=False)
        console.print(picture)
        html = console.export_html(inline_styles=True, code_format=frame, clear=False)
        output.update({"text/html": html, "text/plain": console.export_text()}, raw=True)

    return Screen(show, lambda: None)
