"""Tables on a terminal: whole ones, however narrow it is."""

from rich.console import Console
from rich.table import Table

ROOMY = 80  # characters, as where there is no terminal: narrower tables lose digits
WIDEST = 10_000  # more than any of them takes


def print_table(table: Table) -> None:
    """On standard output. Where there is no room for its numbers, the terminal breaks the lines instead."""
    console = Console()
    natural = console.measure(table, options=console.options.update_width(WIDEST)).maximum
    console.width = max(console.width, min(natural, ROOMY))
    console.print(table)
