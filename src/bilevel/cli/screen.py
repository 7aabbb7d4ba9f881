"""Tables that lose no digit on a narrow terminal, and progress bars."""

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bilevel.cli.plain_text import fitting

ROOMY = 80  # characters; narrower tables lose digits
WIDEST = 10_000  # more than any table needs
COUNT = TextColumn("{task.completed:.0f}/{task.total:.0f}")


def print_table(table: Table) -> None:
    """Print a table on standard output. On a narrow terminal its lines wrap, and no number is cut."""
    console = Console()
    # Replace letters that the terminal lacks, before the widths of columns are computed.
    fit = lambda part: fitting(part, console.encoding) if isinstance(part, str) else part
    table.title, table.caption = fit(table.title), fit(table.caption)
    for column in table.columns:
        column.header, column.footer = fit(column.header), fit(column.footer)
        column._cells = list(map(fit, column.cells))
    natural = console.measure(table, options=console.options.update_width(WIDEST)).maximum
    console.width = max(console.width, min(natural, ROOMY))
    console.print(table)


def progress_bars(*columns: ProgressColumn, transient: bool = True) -> Progress:
    """Return bars with a description, these columns (default: a count) and the time, if stderr is a terminal."""
    screen = Console(stderr=True)
    every = TextColumn("{task.description}", markup=False), BarColumn(30), *(columns or (COUNT,))
    disable = not screen.is_terminal
    return Progress(*every, TimeElapsedColumn(), console=screen, transient=transient, disable=disable)
