"""`bilevel examples`: the applications, listed and run."""

import datetime
import io
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from bilevel.applications import MODULES, Application, Outcome, application
from bilevel.applications.table import as_csv, as_markdown, best, cells, measures, shown
from bilevel.atomic_files import write
from bilevel.checks import MANY
from bilevel.cli.errors import BROKEN, UNSAVED, fail, say
from bilevel.cli.folder import taken
from bilevel.cli.screen import print_table
from bilevel.cli.signals import stoppable
from bilevel.data.files import DataError
from bilevel.loop.errors import RunError


def examples(
    name: Annotated[
        str | None,
        typer.Argument(help="Which one to run, or your own as module:NAME; without a name they are listed."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of runs, each with other data and start.", show_default="1")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Outer steps, instead of the number of its table; baselines do less too."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for picture, table and scores.")] = Path("results"),
    source: Annotated[
        bool, typer.Option("--source", help="Only print the source file, to adapt it.")
    ] = False,
) -> None:
    """Run an application of bilevel optimization, and compare it with its baselines."""
    if name is None:
        if source or seeds is not None or steps is not None:
            first = next(iter(MODULES))
            fail(f"say which example: bilevel examples {first} …; without options they are listed")
        table = Table(show_header=False, box=None, pad_edge=False)
        for each in MODULES:
            table.add_row(f"bilevel examples {each}", application(each).title)
        return print_table(table)
    seeds = 1 if seeds is None else seeds
    if not 1 <= seeds <= 1000:
        fail(f"--seeds must be from 1 to 1000, not {seeds}: take 3 for a spread")
    if steps is not None and not 1 <= steps <= MANY:
        fail(f"--steps must be from 1 to {MANY:,}, not {steps}: leave it out for as many as the table has")
    if source:
        _check_name(name)
        file = files("bilevel.applications") / f"{MODULES[name]}.py"
        return typer.echo(file.read_text(encoding="utf-8"), nl=False)
    done: list[Outcome] = []
    left = lambda: f"scores of {len(done)} of {seeds} seeds are in {out}" if done else "no seed was done"
    with stoppable(left), ExitStack() as held:
        try:
            held.enter_context(taken(out))
        except ValueError as error:
            fail(str(error))
        _run(_chosen(name), range(seeds), steps, out, done)


def _chosen(name: str) -> Application:
    from bilevel.lab.compare.plugins import find

    if ":" not in name:
        _check_name(name)
        return application(name)
    try:
        found = find(name)
    except ValueError as error:
        fail(f"{name}: {error}")
    if not isinstance(found, Application):
        hint = "see the end of bilevel examples reweighting --source"
        fail(f"{name} is no bilevel.applications.Application: {hint}")
    return found


def _check_name(name: str) -> None:
    if name not in MODULES:
        own = "; your own goes by module:APPLICATION" if name.endswith(".py") else ""
        fail(f"there is no example {name!r}: take one of {', '.join(MODULES)}{own}")


def _run(chosen: Application, seeds: range, steps: int | None, out: Path, done: list[Outcome]) -> None:
    """Run all seeds, and save the scores after each; a short trial has files of another name."""
    taken = steps or chosen.steps
    path = out / (chosen.name if taken == chosen.steps else f"{chosen.name}-{taken}-steps")
    for seed in seeds:
        if len(seeds) > 1:
            say(f"seed {seed} of {len(seeds)}, counted from 0")
        try:
            outcome = chosen.trial(seed, taken, True)
        except DataError as error:
            fail(str(error))
        except RunError as error:
            fail(f"seed {seed} has no score: {error}", BROKEN)
        done.append(outcome)
        _save(path, "csv", as_csv(seeds[: len(done)], done).encode(), done, chosen)
    _save(path, "md", _page(chosen, done, taken).encode(), done, chosen)
    _save(path, "png", _picture(chosen, done), done, chosen)
    print_table(_table(chosen, done, taken))
    typer.echo(f"Written: {', '.join(f'{path}.{kind}' for kind in ('md', 'csv', 'png'))}")


def _save(path: Path, kind: str, content: bytes, done: list[Outcome], chosen: Application) -> None:
    try:
        write(path.with_name(f"{path.name}.{kind}"), content)
    except OSError as error:
        print_table(_table(chosen, done, chosen.steps))
        fail(f"could not save {error}; what there is of the table is printed above", UNSAVED)


def _shortened(chosen: Application, steps: int) -> str:
    if steps >= chosen.steps:
        return ""
    return f"A trial of {steps} steps, not {chosen.steps:,}; baselines are cut short alike, so these are no results. "


def _table(chosen: Application, outcomes: list[Outcome], steps: int) -> Table:
    spread = f"; ± the standard deviation over {len(outcomes)} seeds" if len(outcomes) > 1 else ""
    caption = _shortened(chosen, steps) + f"{chosen.source}{spread}".lstrip("; ")
    table = Table(title=Text(chosen.title), caption=Text(caption))
    table.add_column("")
    columns, rows = measures(outcomes), cells(outcomes)
    for measure in columns:
        table.add_column(Text(measure), justify="right")
    for method in rows:
        style = lambda measure, method=method: "bold" if best(chosen, rows, measure) == method else ""
        table.add_row(Text(method), *(Text(shown(rows, method, m), style(m)) for m in columns))
    return table


def _page(chosen: Application, outcomes: list[Outcome], steps: int) -> str:
    """Return the table in Markdown, with the command, date and machine that made it."""
    import jax

    import bilevel
    from bilevel.lab.paper.environment import machine

    shorter = f" --steps {steps}" if steps != chosen.steps else ""
    command = f"bilevel examples {chosen.name} --seeds {len(outcomes)}{shorter}"
    versions = f"bilevel {bilevel.__version__}, jax {jax.__version__}"
    made_by = f"`{command}`, {datetime.date.today()}: {versions}; {machine()}. {_shortened(chosen, steps)}"
    source = f"Data: {chosen.source.rstrip('.')}." if chosen.source else ""
    return f"{as_markdown(chosen, outcomes)}\n\n*{f'{made_by}{source}'.rstrip()}*\n"


def _picture(chosen: Application, outcomes: list[Outcome]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    chosen.draw(figure, outcomes)
    drawn = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(drawn, format="png", dpi=110)
    return drawn.getvalue()
