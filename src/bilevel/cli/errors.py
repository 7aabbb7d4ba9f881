"""How a command refuses: one clear line on standard error and exit status 2."""

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    typer.echo(f"bilevel: {message}", err=True)
    raise typer.Exit(code=2)
