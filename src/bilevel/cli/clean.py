"""`bilevel clean`: rank the rows of a table whose label is probably wrong, as files and as a page."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
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
from bilevel.words import shown

FILES = ("ranked.csv", "weights.csv", "report.html")
SHOWN = 10  # rows on the terminal


def clean(
    data: Annotated[Path, typer.Argument(help="the table: a CSV file with a header line, in UTF-8")],
    label: Annotated[str, typer.Option("--label", metavar="COLUMN", help="the column with the labels")],
    trusted: Annotated[
        Path | None,
        typer.Option("--trusted", help="a CSV file of rows whose labels are right, with the same columns"),
    ] = None,
    trusted_column: Annotated[
        str | None,
        typer.Option(
            "--trusted-column", metavar="COLUMN", help="or the column that marks them by true, 1 or yes"
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="folder for the ranking and the report")] = Path(
        "report"
    ),
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="COLUMN", help="a column to ignore; repeatable"),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option("--category", metavar="COLUMN", help="a column of numbers that are codes; repeatable"),
    ] = None,
    hidden: Annotated[
        int, typer.Option("--hidden", help="hidden units of the model; 0 for a linear one")
    ] = 0,
    steps: Annotated[
        int | None, typer.Option("--steps", help="number of steps on the weights", show_default="the usual")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="random seed")] = 0,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="do not check the ranking on the trusted rows")
    ] = False,
) -> None:
    """Rank the rows of a table by how likely their label is wrong, using a few rows with trusted labels.

    Columns may hold numbers, categories, dates and missing values; the report says how each column was used.
    """
    saved: list[Path] = []
    with stoppable(lambda: f"saved: {', '.join(map(str, saved)) or 'nothing'}"), ExitStack() as held:
        screen = Console(stderr=True)
        try:
            settings = _settings(hidden, steps, seed)
            _spare(out, [data, *([trusted] if trusted else [])])
            with _doing(screen, "Reading"):
                inputs = _read(data, label, trusted, trusted_column, ignore or [], category or [])
            held.enter_context(taken(out))
        except ValueError as error:
            fail(" ".join(str(error).split()))
        found = _judge(inputs, label, settings, not no_check, screen)
        _conclude(found, out, saved, screen)


def register(app: typer.Typer) -> None:
    app.command("clean")(clean)


def _settings(hidden: int, steps: int | None, seed: int) -> dict[str, Any]:
    """What `weigh` is told; it knows best what it is not told."""
    for name, value, least, most in (
        ("--hidden", hidden, 0, 4096),
        ("--steps", steps, 1, 1_000_000),
        ("--seed", seed, 0, 2**31 - 1),
    ):
        if value is not None and not least <= value <= most:
            raise ValueError(
                f"{name} must be between {least} and {most:,}, not {shown(value)}: leave it out if in doubt"
            )
    return {"hidden": hidden or None, "seed": seed} | ({} if steps is None else {"steps": steps})


def _spare(out: Path, given: list[Path]) -> None:
    """A file that is read must not be one of those that are written."""
    written = {(out / name).resolve() for name in FILES}
    for path in given:
        if path.resolve() in written:
            raise ValueError(f"{path} would be overwritten by the report: choose another folder with --out")


def _read(
    data: Path, label: str, trusted: Path | None, column: str | None, ignore: list[str], category: list[str]
):
    from bilevel.cleaning.inputs import read_inputs

    return read_inputs(data, label, trusted, column, ignore, category)


def _judge(inputs: Any, label: str, settings: dict[str, Any], checked: bool, screen: Console) -> Any:
    """Fits the weights, and finds out on the trusted rows what they are worth."""
    import bilevel
    from bilevel.cleaning.encoding import telling
    from bilevel.cleaning.evaluation import FOLDS, worth
    from bilevel.cleaning.findings import Findings
    from bilevel.row_weights.fit import weigh

    rank = partial(weigh, classes=len(inputs.classes), **settings)
    data = inputs.inputs, inputs.labels, inputs.trusted_inputs, inputs.trusted_labels
    weighed = rank(*data, progress=screen.is_terminal)
    judged = None
    if checked:
        likeness = weighed.predict(inputs.trusted_inputs)
        with _bar(screen, "Checking on the trusted rows", FOLDS) as advance:
            judged = worth(rank, *data, likeness, seed=settings["seed"], fold_done=advance)
    model = f"{settings['hidden']} hidden units" if settings["hidden"] else "linear"
    made = {
        "program": f"bilevel {bilevel.__version__}, command clean",
        "data": f"{inputs.table.path.name}, {len(inputs.table):,} rows of {len(inputs.table.header)} columns",
        "model": f"{model}, seed {settings['seed']}",
    }
    return Findings(
        table=inputs.table,
        label=label,
        classes=inputs.classes,
        rows=inputs.rows,
        given=inputs.labels,
        weights=weighed.weights,
        suspicion=weighed.suspicion,
        probabilities=weighed.probabilities,
        encoding=inputs.encoding,
        telling=telling(inputs.encoding, inputs.inputs, np.argmax(weighed.probabilities, axis=1)),
        trusted=len(inputs.trusted_labels),
        worth=judged,
        notes=inputs.notes,
        made=made,
    )


def _conclude(found: Any, out: Path, saved: list[Path], screen: Console) -> None:
    """Writes the files, and prints the first rows."""
    from bilevel.cleaning.files import ranked_csv, weights_csv
    from bilevel.cleaning.report import as_page

    try:
        with _doing(screen, "Writing"):
            ranked, disarmed = ranked_csv(found)
            contents = dict(zip(FILES, (ranked, weights_csv(found), as_page(found)), strict=True))
            for name, content in contents.items():
                saved.append(write(out / name, content.encode("utf-8", "backslashreplace")))
    except OSError as error:
        _print(found)
        fail(f"could not save {error}; saved: {', '.join(map(str, saved)) or 'nothing'}", UNSAVED)
    _print(found)
    if disarmed:
        typer.echo(
            f"Cells that a spreadsheet could compute now have an apostrophe in front in ranked.csv: {disarmed:,}"
        )
    typer.echo(f"Written: {', '.join(map(str, saved))}")


def _print(found: Any) -> None:
    print_table(_table(found))
    Console().print(Text("\n".join([_summary(found), *found.notes])))


def _table(found: Any) -> Table:
    from bilevel.cleaning.findings import tame

    table = Table(
        title=Text(f"The {min(SHOWN, len(found.rows))} most suspicious of {len(found.rows):,} rows")
    )
    for heading, right in {"row": 1, "given": 0, "suggested": 0, "": 1, "suspicion": 1, "weight": 1}.items():
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for i in found.order[:SHOWN]:
        given, new = (Text(tame(found.classes[place[i]], 24)) for place in (found.given, found.suggested))
        numbers = f"{found.sureness[i]:.0%}", f"{found.suspicion[i]:.3f}", f"{found.weights[i]:.2f}"
        table.add_row(f"{found.rows[i] + 1:,}", given, new, *numbers)
    return table


def _summary(found: Any) -> str:
    if found.worth is None:
        return "The ranking was not checked on the trusted rows (--no-check)."
    low, high = found.worth.interval()
    least, most = found.worth.suggested_interval()
    checked = (
        f"On the trusted rows, cross-validated: ROC-AUC {found.worth.area():.3f} ({low:.2f} to {high:.2f}), "
        f"suggested label right {found.worth.suggested:.0%} of the time ({least:.0%} to {most:.0%})."
    )
    if found.expected is None:
        return f"{checked} That is hardly better than chance: these columns say too little about the label."
    share, least, most = (count / len(found.rows) for count in found.expected)
    return f"{checked} About {share:.0%} of the labels seem to be wrong ({least:.0%} to {most:.0%})."


@contextmanager
def _doing(screen: Console, what: str) -> Iterator[None]:
    if screen.is_terminal:
        with screen.status(what):
            yield
    else:
        yield


@contextmanager
def _bar(screen: Console, what: str, total: int) -> Iterator[Any]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    )
    progress = Progress(
        *columns, TimeElapsedColumn(), console=screen, transient=True, disable=not screen.is_terminal
    )
    with progress:
        task = progress.add_task(what, total=total)
        yield lambda _: progress.advance(task)
