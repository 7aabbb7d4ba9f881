"""Exit statuses, and the line on standard error that explains one."""

from typing import NoReturn

import typer

# 0 is success; 1 is also an unexpected error with a traceback. docs/how-to/command-line.md has the table.
REFUSED = 2  # nothing was done: bad input, missing data, or a folder that cannot be written or is in use
BROKEN = 1  # a run diverged
UNSAVED = 3  # the work was done, but not all of it could be saved
INTERRUPTED = 128 + 2  # Ctrl-C
TERMINATED = 128 + 15  # SIGTERM


def fail(message: str, status: int = REFUSED) -> NoReturn:
    say(message)
    raise typer.Exit(code=status)


def say(message: str) -> None:
    typer.echo(f"bilevel: {message}", err=True)
