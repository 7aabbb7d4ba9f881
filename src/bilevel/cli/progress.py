"""Progress bars on standard error, shown only where that is a terminal."""

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

COUNT = TextColumn("{task.completed:.0f}/{task.total:.0f}")


def progress_bars(*columns: ProgressColumn, transient: bool = True) -> Progress:
    """Return bars with a description, these columns (a count if there are none) and the time elapsed."""
    screen = Console(stderr=True)
    every = TextColumn("{task.description}", markup=False), BarColumn(30), *(columns or (COUNT,))
    disable = not screen.is_terminal
    return Progress(*every, TimeElapsedColumn(), console=screen, transient=transient, disable=disable)
