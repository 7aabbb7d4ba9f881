"""`bilevel reproduce`: the experiments of the paper, its figures, and a report on its claims."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bilevel.atomic_files import Unsaved
from bilevel.cli.errors import UNSAVED, fail, say
from bilevel.cli.folder import taken
from bilevel.cli.screen import print_table, progress_bars
from bilevel.cli.signals import stoppable

FORMATS = ("png", "svg", "pdf")
STYLES = {"holds": "green", "holds with a caveat": "yellow", "differs": "red", "not judged": "dim"}


def reproduce(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            help="fig1, fig2, table1, fig3-features, fig3-reweighting, fig3 for both; default: all."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables, figures and report.", show_default="results")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A shortened protocol, under 45 seconds.")] = False,
    seeds: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="Number of seeds of the random experiments.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the original data files.", show_default="bundled data")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Load the original data into the cache.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Run experiments again that have results.")] = False,
    format: Annotated[list[str] | None, typer.Option(help="Another format of the figures: pdf.")] = None,
) -> None:
    """Run the paper's experiments and write figures and a report into a folder.

    Results from the same settings, data and code are kept and not computed again.
    """
    from bilevel.data import DataError
    from bilevel.lab.paper.experiment import Options
    from bilevel.lab.paper.manifest import examined
    from bilevel.lab.paper.registry import EXPERIMENTS, chosen
    from bilevel.lab.paper.runner import prepare

    folder = out or (Path("results", "quick") if quick else Path("results"))
    last_words = lambda: f"what was finished is in {folder} and will not be run again"
    with stoppable(last_words), ExitStack() as held:
        try:
            picked = chosen(experiments or [])
            formats = _formats(format or [])
            options = Options(quick=quick, seeds=_count(seeds), data=data, download=download)
            held.enter_context(taken(folder))
            jobs = [prepare(experiment, options, folder) for experiment in picked]
            if quick and not force:
                _refuse_to_replace(jobs)
        except (ValueError, DataError, OSError) as error:
            fail(str(error))
        for name, experiment in EXPERIMENTS.items():
            if reason := examined(experiment, folder)[1]:
                say(f"warning: {reason}; {name} counts as not run")
        console = Console()
        _perform(jobs, force, console)
        _conclude(jobs, folder, formats, console)


def _refuse_to_replace(jobs: list[Any]) -> None:
    if full := [job.experiment.name for job in jobs if job.shortens]:
        raise ValueError(
            f"{jobs[0].out} has {', '.join(full)} of the full protocol, which --quick would replace: "
            "name another folder with --out, or pass --force"
        )


def _perform(jobs: list[Any], force: bool, console: Console) -> None:
    """Run the experiments without results, with a bar for the current one and a bar for all."""
    from bilevel.lab.paper.runner import Unfiled, perform
    from bilevel.lab.paper.tables import as_csv

    percent, doing = TextColumn("{task.percentage:>3.0f}%"), TextColumn("[dim]{task.fields[doing]}")
    with progress_bars(percent, TimeRemainingColumn(), doing) as progress:
        overall = progress.add_task("All experiments", total=len(jobs), doing="")
        for job in jobs:
            title = job.experiment.title
            if job.done and not force:
                console.print(f"[green]✓[/] {title}: already there")
            else:
                task = progress.add_task(title, total=1.0, doing="")
                report = lambda done, doing="", task=task: progress.update(task, completed=done, doing=doing)
                try:
                    seconds = perform(job, report)
                except Unfiled as error:
                    progress.stop()
                    for name, table in error.tables.items():
                        typer.echo(f"# {name}\n{as_csv(table)}")
                    fail(
                        f"could not save {error}; the tables of {job.experiment.name} are printed above, "
                        f"{_saved(jobs)}. Make room or name another folder with --out, and start again",
                        UNSAVED,
                    )
                except Unsaved as error:
                    progress.stop()
                    fail(f"could not save {error}; {_saved(jobs)}", UNSAVED)
                finally:
                    progress.remove_task(task)
                console.print(f"[green]✓[/] {title}: {seconds:.1f} s")
            progress.advance(overall)


def _conclude(jobs: list[Any], folder: Path, formats: tuple[str, ...], console: Console) -> None:
    """Write the report, and print its verdicts even if it cannot be written."""
    from bilevel.lab.paper.claims import judge
    from bilevel.lab.paper.registry import read_results
    from bilevel.lab.paper.report import write_report

    unsaved = None
    try:
        with console.status("Figures and report"):
            claims = write_report(folder, formats)
    except OSError as error:
        unsaved, claims = error, judge(read_results(folder))
    print_table(_table(claims))
    if unsaved is not None:
        fail(f"could not save {unsaved}; {_saved(jobs)}. Start again to have figures and report", UNSAVED)
    if lost := [job.experiment.name for job in jobs if not job.done]:
        fail(
            f"{', '.join(lost)} could not be kept: {folder} was changed meanwhile, and the report has what is left",
            UNSAVED,
        )
    typer.echo(f"Report: {folder / 'report.html'} (and report.md, figures and tables beside it)")


def _saved(jobs: list[Any]) -> str:
    names = [job.experiment.name for job in jobs if job.done]
    return f"saved in {jobs[0].out}: {', '.join(names) or 'nothing'}"


def _table(claims: list[Any]) -> Table:
    table = Table(title="The paper's claims")
    for heading, share in {"verdict": 2, "claim": 5, "paper": 2, "ours": 6}.items():
        table.add_column(heading, ratio=share, overflow="fold")
    for claim in claims:
        about = f"{claim.where}: {claim.claim}", claim.paper, claim.ours
        table.add_row(Text(claim.verdict, STYLES[claim.verdict]), *map(Text, about))
    return table


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"--seeds must be a whole number of at least 1, not {text!r}: pass e.g. --seeds 5")
    return int(text)


def _formats(wanted: list[str]) -> tuple[str, ...]:
    if unknown := [name for name in wanted if name not in FORMATS]:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}, not {unknown[0]!r}")
    return tuple(dict.fromkeys(["png", "svg", *wanted]))
