"""`bilevel compare`: all methods on three tasks, as a figure, a CSV file and a table."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bilevel.cli.errors import fail

COLUMNS = (
    "task",
    "method",
    "family",
    "outer_rate",
    "steps",
    "gradients",
    "products",
    "calls",
    "seconds",
    "value",
)


def compare(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(help="quadratic, ridge_logistic, reweighting; all of them if left out"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="eight methods and small budgets")] = False,
    out: Annotated[Path, typer.Option("--out", help="folder for the figure and the data")] = Path("results"),
) -> None:
    """Compare the methods: stationarity against oracle calls and against wall-clock."""
    from bilevel.compare import TASKS  # loads every solver, which other commands need not wait for
    from bilevel.compare.plot import draw, save

    chosen = tasks or list(TASKS)
    if unknown := [name for name in chosen if name not in TASKS]:
        fail(f"unknown task {unknown[0]!r}: choose from {', '.join(TASKS)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--out {out} cannot be used as a folder ({error.strerror}): pass another one")
    results = _measure([TASKS[name] for name in dict.fromkeys(chosen)], quick)
    paths = [_write(results, out / "compare.csv"), *save(draw(results), out)]
    console = Console()
    console.print(_summary(results))
    console.print(f"Written: {', '.join(str(path) for path in paths)}")


def register(app: typer.Typer) -> None:
    app.command("compare")(compare)


def _measure(builders: list, quick: bool) -> dict[str, tuple[Any, list]]:
    from bilevel.compare import METHODS, measure

    methods = [method for method in METHODS if method.quick or not quick]
    results = {}
    with _progress(len(builders) * len(methods)) as report:
        for build in builders:
            with jax.enable_x64(True):
                task = build(quick)
            curves = []
            for method in methods:
                report(f"{task.name}: {method.name}")
                if not (method.small_x and task.large_x):
                    with jax.enable_x64(task.x64):
                        curves.append(measure(method, task))
            results[task.name] = (task, curves)
    return results


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    console = Console(stderr=True)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    )
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("", total=total, completed=-1)
        yield lambda what: progress.update(bar, description=f"{what:<36}", advance=1)


def _write(results: dict[str, tuple[Any, list]], path: Path) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for task, curves in results.values():
            for curve in curves:
                about = (task.name, curve.method.name, curve.method.family, f"{curve.rate:g}")
                for p in curve.points:
                    costs = (p.steps, p.gradients, p.products, p.calls, f"{p.seconds:.6g}")
                    rows.writerow((*about, *costs, f"{p.value:.9g}"))
    return path


def _summary(results: dict[str, tuple[Any, list]]) -> Table:
    tasks = [task for task, _ in results.values()]
    caption = "\n".join(f"{task.name}: {task.label}" for task in tasks)
    table = Table(title="Where the oracle calls led", caption=caption)
    table.add_column("\nmethod", no_wrap=True)
    for task in tasks:
        table.add_column(f"{task.name}\n{task.calls:,} calls", justify="right", no_wrap=True)
    by_method: dict[str, dict[str, float]] = {}
    for task, curves in results.values():
        for curve in curves:
            by_method.setdefault(curve.method.name, {})[task.name] = curve.points[-1].value
    for name, ends in by_method.items():
        table.add_row(name, *(_value(ends[task.name]) if task.name in ends else "–" for task in tasks))
    return table


def _value(value: float) -> str:
    return "diverged" if value == float("inf") else f"{value:.2e}"
