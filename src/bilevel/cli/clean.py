"""`bilevel clean`: rank the rows of a table by how likely their label is wrong, and write files and a page."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bilevel.atomic_files import write
from bilevel.cli.errors import UNSAVED, fail
from bilevel.cli.folder import taken
from bilevel.cli.screen import print_table, progress_bars
from bilevel.cli.signals import stoppable
from bilevel.words import shown

FILES = ("ranked.csv", "weights.csv", "report.html")
SHOWN = 10  # rows on the terminal
LIMITS = {"--hidden": (0, 4096), "--steps": (1, 1_000_000), "--seed": (0, 2**31 - 1)}
column: Callable[[str], Any] = lambda help: typer.Option(metavar="COLUMN", help=help)


def clean(
    data: Annotated[Path, typer.Argument(help="The table: a CSV file with a header line, in UTF-8.")],
    label: Annotated[str, column("The column with the labels.")],
    trusted: Annotated[
        Path | None, typer.Option(help="A CSV file of rows with correct labels and the same columns.")
    ] = None,
    trusted_column: Annotated[str | None, column("Or a column with true, 1 or yes in these rows.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the ranking and the report.")] = Path("report"),
    ignore: Annotated[list[str] | None, column("A column to ignore; repeatable.")] = None,
    category: Annotated[list[str] | None, column("A column of numbers that are codes; repeatable.")] = None,
    hidden: Annotated[int, typer.Option(help="Hidden units of the model; 0: a linear model.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Number of steps on the weights.", show_default="the usual")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not check the ranking on the trusted rows.")
    ] = False,
) -> None:
    """Rank the rows of a table by how likely their label is wrong, using a few rows with trusted labels.

    Columns may hold numbers, categories, dates and missing values; the report explains how each column was used.
    """
    from bilevel.cleaning.inputs import read_inputs

    saved: list[Path] = []
    with stoppable(lambda: f"saved: {_names(saved)}"), ExitStack() as held:
        screen = Console(stderr=True)
        try:
            settings = _settings(hidden, steps, seed)
            _check_out(out, [data, *([trusted] if trusted else [])])
            with _spinner(screen, "Reading"):
                inputs = read_inputs(data, label, trusted, trusted_column, ignore or [], category or [])
            held.enter_context(taken(out))
        except ValueError as error:
            fail(" ".join(str(error).split()))
        found = _rank(inputs, label, settings, not no_check, screen)
        _conclude(found, out, saved, screen)


def _settings(hidden: int, steps: int | None, seed: int) -> dict[str, Any]:
    """Return the arguments of `weigh`; it has its own default for `steps`."""
    for (name, (least, most)), value in zip(LIMITS.items(), (hidden, steps, seed), strict=True):
        if value is not None and not least <= value <= most:
            limits = f"between {least} and {most:,}"
            raise ValueError(f"{name} must be {limits}, not {shown(value)}: leave it out if in doubt")
    return {"hidden": hidden or None, "seed": seed} | ({} if steps is None else {"steps": steps})


def _check_out(out: Path, given: list[Path]) -> None:
    written = {(out / name).resolve() for name in FILES}
    for path in given:
        if path.resolve() in written:
            raise ValueError(f"{path} would be overwritten by the report: choose another folder with --out")


def _rank(inputs: Any, label: str, settings: dict[str, Any], checked: bool, screen: Console) -> Any:
    import bilevel
    from bilevel.cleaning.encoding import telling
    from bilevel.cleaning.evaluation import FOLDS, worth
    from bilevel.cleaning.findings import Findings
    from bilevel.row_weights.fit import weigh

    rank = partial(weigh, classes=len(inputs.classes), **settings)
    data = inputs.inputs, inputs.labels, inputs.trusted_inputs, inputs.trusted_labels
    weighed = rank(*data, progress=screen.is_terminal)
    evaluated = None
    if checked:
        likeness = weighed.predict(inputs.trusted_inputs)
        with progress_bars() as bars:
            bar = bars.add_task("Checking on the trusted rows", total=FOLDS)
            advance = lambda fold: bars.advance(bar)
            evaluated = worth(rank, *data, likeness, seed=settings["seed"], fold_done=advance)
    model = f"{settings['hidden']} hidden units" if settings["hidden"] else "linear"
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
        worth=evaluated,
        notes=inputs.notes,
        made={
            "program": f"bilevel {bilevel.__version__}, command clean",
            "data": f"{inputs.table.path.name}, {len(inputs.table):,} rows of {len(inputs.table.header)} columns",
            "model": f"{model}, seed {settings['seed']}",
        },
    )


def _conclude(found: Any, out: Path, saved: list[Path], screen: Console) -> None:
    from bilevel.cleaning.files import ranked_csv, weights_csv
    from bilevel.cleaning.report import as_page

    failure, disarmed = None, 0
    try:
        with _spinner(screen, "Writing"):
            ranked, disarmed = ranked_csv(found)
            for name, content in zip(FILES, (ranked, weights_csv(found), as_page(found)), strict=True):
                saved.append(write(out / name, content.encode("utf-8", "backslashreplace")))
    except OSError as error:
        failure = error
    print_table(_table(found))
    Console().print(Text("\n".join([_summary(found), *found.notes])))
    if failure:
        fail(f"could not save {failure}; saved: {_names(saved)}", UNSAVED)
    if disarmed:
        escaped = "Cells that a spreadsheet could compute now have an apostrophe in front in ranked.csv"
        typer.echo(f"{escaped}: {disarmed:,}")
    typer.echo(f"Written: {_names(saved)}")


def _names(saved: list[Path]) -> str:
    return ", ".join(map(str, saved)) or "nothing"


def _table(found: Any) -> Table:
    from bilevel.cleaning.findings import tame

    count = min(SHOWN, len(found.rows))
    table = Table(title=Text(f"The {count} most suspicious of {len(found.rows):,} rows"))
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
def _spinner(screen: Console, what: str) -> Iterator[None]:
    with screen.status(what) if screen.is_terminal else ExitStack():
        yield
