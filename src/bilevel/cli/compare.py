"""`bilevel compare`: all methods on three tasks, and yours, as a figure, a CSV file and a table."""

import csv
import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bilevel.atomic_files import write
from bilevel.cli.errors import UNSAVED, fail
from bilevel.cli.folder import taken
from bilevel.cli.signals import stoppable
from bilevel.cli.tables import print_table

UNFINISHED = "compare-unfinished.csv"
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
    results: dict[str, tuple[Any, list[Any]]] = {}
    saved: list[Path] = []
    with stoppable(lambda: _left(results, saved, out)), ExitStack() as held:
        try:
            chosen = _tasks(tasks or [], task or [], quick)
            methods = _methods(method or [], chosen, quick)
            held.enter_context(taken(out))
        except ValueError as error:
            fail(str(error))
        _measure(chosen, methods, results, out / UNFINISHED)
        _conclude(results, saved, out)


def register(app: typer.Typer) -> None:
    app.command("compare")(compare)


def _tasks(names: list[str], yours: list[str], quick: bool) -> list[Any]:
    """The tasks that were named; all of ours if none was."""
    from bilevel.lab.compare import TASKS
    from bilevel.lab.compare.plugins import your_task

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
    from bilevel.lab.compare.plugins import check_method, your_method

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


def _measure(
    tasks: list[Any], methods: list[Any], results: dict[str, tuple[Any, list[Any]]], unfinished: Path
) -> None:
    """Fills `results`, and keeps on the disk what there is of them, for whoever stops it."""
    from bilevel.lab.compare import measure

    with _progress(len(tasks) * len(methods)) as report:
        for task in tasks:
            for method in methods:
                report(f"{task.name}: {method.name}")
                if not (method.small_x and task.large_x):
                    with jax.enable_x64(task.x64):
                        curve = measure(method, task)
                    results.setdefault(task.name, (task, []))[1].append(curve)
                    with suppress(OSError):  # if the disk is full now, it need not be in the end
                        write(unfinished, _as_csv(results).encode())


def _conclude(results: dict[str, tuple[Any, list[Any]]], saved: list[Path], out: Path) -> None:
    """Prints the table, and writes data and figure; the data are printed if they cannot be written."""
    # Loads every solver, which other commands need not wait for.
    from bilevel.lab.compare.plot import draw, save

    print_table(_summary(results))
    try:
        saved.append(write(out / "compare.csv", _as_csv(results).encode()))
    except OSError as error:
        typer.echo(_as_csv(results), nl=False)
        fail(f"could not save {error}; all its rows are printed above", UNSAVED)
    with suppress(OSError):
        (out / UNFINISHED).unlink()
    try:
        saved += save(draw(results), out)
    except OSError as error:
        fail(f"could not save {error}; saved: {saved[0]}", UNSAVED)
    typer.echo(f"Written: {', '.join(map(str, saved))}")


def _left(results: dict[str, tuple[Any, list[Any]]], saved: list[Path], out: Path) -> str:
    """What remains of a comparison that is stopped, and where."""
    if saved:
        return f"saved: {saved[0]}, without a figure"
    if not results:
        return "nothing was measured"
    count = sum(len(curves) for _, curves in results.values())
    try:
        write(out / UNFINISHED, _as_csv(results).encode())
    except OSError as error:
        typer.echo(_as_csv(results), nl=False)
        return f"could not save {error}; the {count} curves measured so far are printed above"
    return f"the {count} curves measured so far are in {out / UNFINISHED}"


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    )
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task("", total=total, completed=-1)
        yield lambda what: progress.update(bar, description=f"{what:<36}", advance=1)


def _as_csv(results: dict[str, tuple[Any, list[Any]]]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for task, curves in results.values():
        for curve in curves:
            about = (task.name, curve.method.name, curve.method.family, f"{curve.rate:g}")
            for p in curve.points:
                costs = (p.steps, p.gradients, p.products, p.calls, f"{p.seconds:.6g}")
                rows.writerow((*about, *costs, f"{p.value:.9g}"))
    return text.getvalue()


def _summary(results: dict[str, tuple[Any, list[Any]]]) -> Table:
    tasks = [task for task, _ in results.values()]
    caption = Text("\n".join(f"{task.name}: {task.label}" for task in tasks))
    table = Table(title="Where the oracle calls led", caption=caption)
    table.add_column("\nmethod", no_wrap=True)
    for task in tasks:
        table.add_column(Text(f"{task.name}\n{task.calls:,} calls"), justify="right", no_wrap=True)
    by_method: dict[str, dict[str, float]] = {}
    for task, curves in results.values():
        for curve in curves:
            by_method.setdefault(curve.method.name, {})[task.name] = curve.points[-1].value
    for name, ends in by_method.items():
        table.add_row(Text(name), *(_value(ends[task.name]) if task.name in ends else "–" for task in tasks))
    return table


def _value(value: float) -> str:
    return "diverged" if value == float("inf") else f"{value:.2e}"
