"""A progress bar for a terminal or a notebook, and nothing at all anywhere else."""

import sys
from typing import Any

import numpy as np

from bilevel.loop.hooks.base import Event, Hook
from bilevel.words import printable

WIDTH = 30  # of the bar in a notebook, in characters


class Progress(Hook):
    """Draws a bar with the rate, f and ‖∇Φ‖ on standard error if that is a terminal, or in a notebook's cell.

    Of a sweep it shows the lowest values among the lanes.
    """

    reads_info = False
    steers = False
    once = True  # of several processes, in the first alone

    def __init__(self):
        self._view: Any = None
        self._first = 0

    def begin(self, event: Event) -> None:
        from rich.console import Console

        console = Console(stderr=True)
        self._first = event.step
        if console.is_jupyter:
            self._view = _Cell(event)
        elif console.is_terminal:
            self._view = _Bar(event, console)

    def __call__(self, event: Event) -> None:
        if self._view is not None:
            rate = (event.step - self._first) / max(event.seconds, 1e-9)
            self._view.show(event, f"{rate:,.0f}", *(_least(event, name) for name in COLUMNS))

    def end(self, result: Any) -> None:
        self.close()

    def close(self) -> None:
        """The terminal is the user's again, whatever happened."""
        if self._view is not None:
            self._view.close()
            self._view = None


COLUMNS = ("outer_value", "hypergradient_norm")


class _Bar:
    """On a terminal, by rich."""

    def __init__(self, event: Event, console: Any):
        from rich.progress import BarColumn, Progress as Bar, TextColumn, TimeRemainingColumn

        plain = lambda text: printable(text, console.file)
        unknown = plain("–")
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("[dim]{task.fields[rate]} it/s"),
            TextColumn(plain("f [cyan]{task.fields[outer]}[/]  ‖∇Φ‖≈[cyan]{task.fields[norm]}[/]")),
            TimeRemainingColumn(),
            console=console,
            redirect_stdout=is_terminal(sys.stdout),  # what is piped into a file belongs there
        )
        self._task = self._bar.add_task(
            event.name, total=event.total, completed=event.step, rate=unknown, outer=unknown, norm=unknown
        )
        self._bar.start()

    def show(self, event: Event, rate: str, outer: float, norm: float) -> None:
        self._bar.update(
            self._task, completed=event.step, rate=rate, outer=f"{outer:.4g}", norm=f"{norm:.2e}"
        )

    def close(self) -> None:
        self._bar.stop()


class _Cell:
    """In a notebook: one line of text that is replaced, which needs no widgets."""

    def __init__(self, event: Event):
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self._line: Any = display({"text/plain": event.name}, raw=True, display_id=True)

    def show(self, event: Event, rate: str, outer: float, norm: float) -> None:
        filled = WIDTH * event.step // max(event.total, 1)
        bar = "━" * filled + "╌" * (WIDTH - filled)
        text = (
            f"{event.name} {bar} {event.step:,}/{event.total:,}  {rate} it/s  f {outer:.4g}  ‖∇Φ‖≈{norm:.2e}"
        )
        self._line.update({"text/plain": text}, raw=True)

    def close(self) -> None:
        """The last line stays."""


def is_terminal(stream: Any) -> bool:
    """Whether it writes to one; a process without a console has no streams, and any may be closed."""
    return stream is not None and not getattr(stream, "closed", False) and stream.isatty()


def _least(event: Event, name: str) -> float:
    """The newest value; of the lanes of a sweep, the lowest."""
    return float(np.nanmin(np.asarray(event.column(name))[..., -1], initial=np.inf))
