"""A progress bar for a terminal, and nothing at all anywhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


@runtime_checkable
class Report(Protocol):
    def __call__(self, step: int, outer_value: float, hypergradient_norm: float) -> None: ...


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} it/s" if task.speed else "– it/s", style="dim")


@contextmanager
def progress_bar(name: str, start: int, stop: int, wanted: bool) -> Iterator[Report]:
    """A function to report a step to. It draws on standard error, and only where that is a terminal."""
    console = Console(stderr=True) if wanted else None
    if console is None or not console.is_terminal:
        yield lambda step, outer_value, hypergradient_norm: None
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        _Rate(),
        TextColumn("f [cyan]{task.fields[outer]}[/]  ‖∇Φ‖≈[cyan]{task.fields[norm]}[/]"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=stop, completed=start, outer="–", norm="–")

        def report(step: int, outer_value: float, hypergradient_norm: float) -> None:
            progress.update(
                task, completed=step, outer=f"{outer_value:.4g}", norm=f"{hypergradient_norm:.2e}"
            )

        yield report
