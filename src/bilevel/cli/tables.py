"""Tables on a terminal: whole ones, however narrow it is."""

from rich.console import Console
from rich.table import Table

from bilevel.cli.plain_text import fitting

ROOMY = 80  # characters, as where there is no terminal: narrower tables lose digits
WIDEST = 10_000  # more than any of them takes


def print_table(table: Table) -> None:
    """On standard output. Where there is no room for its numbers, the terminal breaks the lines instead."""
    console = Console()
    _fit(table, console.encoding)
    natural = console.measure(table, options=console.options.update_width(WIDEST)).maximum
    console.width = max(console.width, min(natural, ROOMY))
    console.print(table)


def _fit(table: Table, encoding: str) -> None:
    """Names for letters that the terminal does not have, before columns are as wide as what is in them."""
    fit = lambda part: fitting(part, encoding) if isinstance(part, str) else part
    table.title, table.caption = fit(table.title), fit(table.caption)
    for column in table.columns:
        column.header, column.footer = fit(column.header), fit(column.footer)
        column._cells = list(map(fit, column.cells))
