"""How a command ends when it cannot do what it was asked: one clear line on standard error, and an exit status."""

from typing import NoReturn

import typer

# Beside these, 0 is success, and 1 also an unforeseen error with a traceback. docs/how-to/command-line.md has
# the table.
REFUSED = 2  # nothing was done: bad input, data not available, a folder not writable or in use
BROKEN = 1  # a run diverged
UNSAVED = 3  # the work was done, but not all of it could be saved
INTERRUPTED = 128 + 2  # Ctrl-C
TERMINATED = 128 + 15  # SIGTERM


def fail(message: str, status: int = REFUSED) -> NoReturn:
    say(message)
    raise typer.Exit(code=status)


def say(message: str) -> None:
    typer.echo(f"bilevel: {message}", err=True)
