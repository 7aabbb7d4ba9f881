"""`bilevel compare`: all methods on three tasks, and yours, as a figure, a CSV file and a table."""

import csv
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bilevel.cli.errors import fail
from bilevel.cli.folder import writable

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
        typer.Argument(help="quadratic, ridge_logistic, reweighting; all of them if no task is named"),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="MODULE:NAME",
            help="a method of your own beside ours: a Method, or a function of (problem, L, outer) -> solver",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="MODULE:NAME",
            help="a task of your own: a problems.Instance, or a function that makes one",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="eight methods and small budgets")] = False,
    out: Annotated[Path, typer.Option("--out", help="folder for the figure and the data")] = Path("results"),
) -> None:
    """Compare the methods: stationarity against oracle calls and against wall-clock.

    Modules named with --method and --task are looked for in the current folder, too. Both may be given several times.
    """
    from bilevel.lab.compare.plot import (  # loads every solver, which other commands need not wait for
        draw,
        save,
    )

    try:
        chosen = _tasks(tasks or [], task or [], quick)
        methods = _methods(method or [], chosen, quick)
        writable(out)
    except ValueError as error:
        fail(str(error))
    results = _measure(chosen, methods)
    paths = [_write(results, out / "compare.csv"), *save(draw(results), out)]
    console = Console()
    console.print(_summary(results))
    console.print(f"Written: {', '.join(str(path) for path in paths)}")


def register(app: typer.Typer) -> None:
    app.command("compare")(compare)


def _tasks(names: list[str], yours: list[str], quick: bool) -> list[Any]:
    """The tasks that were named; all of ours if none was."""
    from bilevel.lab.compare import TASKS
    from bilevel.lab.compare.yours import your_task

    if unknown := [name for name in names if name not in TASKS]:
        raise ValueError(
            f"unknown task {unknown[0]!r}: choose from {', '.join(TASKS)}, or pass --task module:name"
        )
    ours = dict.fromkeys(names if names or yours else TASKS)
    with jax.enable_x64(
        True
    ):  # so that the arrays of both are made in double precision, unless they say otherwise
        mine = [_named("--task", address, lambda address: your_task(address, quick)) for address in yours]
        return _distinct("task", [*(TASKS[name](quick) for name in ours), *mine])


def _methods(yours: list[str], tasks: list[Any], quick: bool) -> list[Any]:
    """Ours, or those that stand for them all, and yours; each of yours has made a solver for every task."""
    from bilevel.lab.compare import METHODS
    from bilevel.lab.compare.yours import check_method, your_method

    added = [_named("--method", address, your_method) for address in yours]
    for (address, method), task in itertools.product(zip(yours, added, strict=True), tasks):
        with jax.enable_x64(task.x64):
            _named("--method", address, lambda _, method=method, task=task: check_method(method, task))
    return _distinct("method", [*(method for method in METHODS if method.quick or not quick), *added])


def _named(option: str, address: str, make: Callable[[str], Any]) -> Any:
    """What `make` makes of the option's value, its complaints told apart by the option."""
    try:
        return make(address)
    except ValueError as error:
        raise ValueError(f"{option} {address}: {error}") from error


def _distinct(kind: str, named: list[Any]) -> list[Any]:
    for i, one in enumerate(named):
        if one.name in [other.name for other in named[:i]]:
            raise ValueError(f"there are two {kind}s named {one.name!r}: give yours another name")
    return named


def _measure(tasks: list[Any], methods: list[Any]) -> dict[str, tuple[Any, list]]:
    from bilevel.lab.compare import measure

    results = {}
    with _progress(len(tasks) * len(methods)) as report:
        for task in tasks:
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
