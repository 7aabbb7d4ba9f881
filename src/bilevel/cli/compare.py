"""`bilevel compare`: all methods and yours on three tasks, as a figure, a CSV file and a table."""

import csv
import io
import itertools
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.table import Table
from rich.text import Text

from bilevel.atomic_files import write
from bilevel.cli.errors import UNSAVED, fail
from bilevel.cli.folder import taken
from bilevel.cli.screen import print_table, progress_bars
from bilevel.cli.signals import stoppable

UNFINISHED = "compare-unfinished.csv"
ABOUT = "task", "method", "family", "outer_rate"
COLUMNS = *ABOUT, "steps", "gradients", "products", "calls", "seconds", "value"

Results = dict[str, tuple[Any, list[Any]]]  # by name of the task: the task and its curves
yours: Callable[[str], Any] = lambda help: typer.Option(metavar="MODULE:NAME", help=help)


def compare(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(help="quadratic, ridge_logistic, reweighting; without a name, all of them."),
    ] = None,
    method: Annotated[
        list[str] | None,
        yours("Your method: a Method, or a function of (problem, L, outer) -> solver."),
    ] = None,
    task: Annotated[
        list[str] | None, yours("Your task: a problems.Instance, or a function that returns one.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Eight methods and small budgets.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the figure and the data.")] = Path("results"),
) -> None:
    """Compare the methods: stationarity against oracle calls and against wall-clock time.

    Modules of --method and --task are also searched for in the current folder. Both options are repeatable.
    """
    results: Results = {}
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


def _tasks(names: list[str], yours: list[str], quick: bool) -> list[Any]:
    from bilevel.lab.compare import TASKS
    from bilevel.lab.compare.plugins import your_task

    if unknown := [name for name in names if name not in TASKS]:
        ours = ", ".join(TASKS)
        raise ValueError(f"unknown task {unknown[0]!r}: choose from {ours}, or pass --task module:name")
    chosen = dict.fromkeys(names if names or yours else TASKS)
    with jax.enable_x64(True):  # the arrays of all tasks are in double precision by default
        added = [_named("--task", address, lambda address: your_task(address, quick)) for address in yours]
        return _distinct("task", [*(TASKS[name](quick) for name in chosen), *added])


def _methods(yours: list[str], tasks: list[Any], quick: bool) -> list[Any]:
    """Return the built-in methods and `yours`. Each of `yours` first makes a solver for every task."""
    from bilevel.lab.compare import METHODS
    from bilevel.lab.compare.plugins import check_method, your_method

    added = [_named("--method", address, your_method) for address in yours]
    for (address, method), task in itertools.product(zip(yours, added, strict=True), tasks):
        with jax.enable_x64(task.x64):
            _named("--method", address, lambda _, method=method, task=task: check_method(method, task))
    return _distinct("method", [*(method for method in METHODS if method.quick or not quick), *added])


def _named(option: str, address: str, make: Callable[[str], Any]) -> Any:
    """Return `make(address)`; an error starts with the name of the option."""
    try:
        return make(address)
    except ValueError as error:
        raise ValueError(f"{option} {address}: {error}") from error


def _distinct(kind: str, named: list[Any]) -> list[Any]:
    for i, one in enumerate(named):
        if one.name in [other.name for other in named[:i]]:
            raise ValueError(f"there are two {kind}s named {one.name!r}: give yours another name")
    return named


def _measure(tasks: list[Any], methods: list[Any], results: Results, unfinished: Path) -> None:
    """Fill `results`, and write each new curve to the disk in case the command is stopped."""
    from bilevel.lab.compare import measure

    with progress_bars(transient=False) as bars:
        bar = bars.add_task("", total=len(tasks) * len(methods), completed=-1)
        for task, method in itertools.product(tasks, methods):
            bars.update(bar, description=f"{f'{task.name}: {method.name}':<36}", advance=1)
            if method.small_x and task.large_x:
                continue
            with jax.enable_x64(task.x64):
                curve = measure(method, task)
            results.setdefault(task.name, (task, []))[1].append(curve)
            with suppress(OSError):  # a disk that is full now may have room at the end
                write(unfinished, _as_csv(results).encode())


def _conclude(results: Results, saved: list[Path], out: Path) -> None:
    """Print the table, and write data and figure; print the data if they cannot be written."""
    from bilevel.lab.compare.plot import draw, save  # loads every solver

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


def _left(results: Results, saved: list[Path], out: Path) -> str:
    """Describe the saved results of a stopped comparison, and save unfinished ones."""
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


def _as_csv(results: Results) -> str:
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


def _summary(results: Results) -> Table:
    tasks = [task for task, _ in results.values()]
    caption = Text("\n".join(f"{task.name}: {task.label}" for task in tasks))
    table = Table(title="Where the oracle calls led", caption=caption)
    table.add_column("\nmethod", no_wrap=True)
    for task in tasks:
        table.add_column(Text(f"{task.name}\n{task.calls:,} calls"), justify="right", no_wrap=True)
    shown = lambda value: "diverged" if value == float("inf") else f"{value:.2e}"
    ends = {
        (c.method.name, task.name): shown(c.points[-1].value) for task, cs in results.values() for c in cs
    }
    for name in dict.fromkeys(name for name, _ in ends):
        table.add_row(Text(name), *(ends.get((name, task.name), "–") for task in tasks))
    return table
