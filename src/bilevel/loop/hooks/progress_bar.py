"""A progress bar for a terminal or a notebook, and nothing at all anywhere else."""

from typing import Any

import numpy as np

from bilevel.loop.hooks.base import Event


class Progress:
    """Draws a bar with the rate, f and ‖∇Φ‖ on standard error if that is a terminal, or in a notebook's cell."""

    def __init__(self):
        self._bar: Any = None
        self._task: Any = None

    def begin(self, event: Event) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress as Bar, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if not (console.is_terminal or console.is_jupyter):
            return
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("[dim]{task.fields[rate]} it/s"),
            TextColumn("f [cyan]{task.fields[outer]}[/]  ‖∇Φ‖≈[cyan]{task.fields[norm]}[/]"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(
            event.name, total=event.total, completed=event.step, rate="–", outer="–", norm="–"
        )
        self._first = event.step
        self._bar.start()

    def __call__(self, event: Event) -> None:
        if self._bar is None:
            return
        self._bar.update(
            self._task,
            completed=event.step,
            rate=f"{(event.step - self._first) / max(event.seconds, 1e-9):,.0f}",
            outer=f"{_least(event, 'outer_value'):.4g}",
            norm=f"{_least(event, 'hypergradient_norm'):.2e}",
        )

    def end(self, result: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _least(event: Event, name: str) -> float:
    """The newest value; of the lanes of a sweep, the lowest."""
    return float(np.nanmin(np.asarray(event.column(name))[..., -1], initial=np.inf))
