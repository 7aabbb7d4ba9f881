"""Command line: one file per command, registered here."""

import io
import os
import sys
from typing import Annotated

import typer

import bilevel
from bilevel.cli import certify, clean, compare, demo, examples, plain_text, reproduce
from bilevel.cli.errors import INTERRUPTED, REFUSED, TERMINATED, UNSAVED, OneLine, say

app = typer.Typer(
    cls=OneLine, name="bilevel", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

COMMANDS = reproduce.reproduce, demo.demo, certify.certify, compare.compare, examples.examples, clean.clean
for command in COMMANDS:
    app.command()(command)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"bilevel {bilevel.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Single-loop bilevel optimization with convergence certificates."""


def _is_folder_there() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Greek letters shows their names
            stream.reconfigure(errors=plain_text.NAME)
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:  # None if it was closed before the start
                sys.stdout.flush()
    except OSError as error:  # from standard output: every command handles the errors of its files
        if not _is_folder_there():
            say("the current folder is gone: change into another one")
            sys.exit(REFUSED)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter fails again when it flushes
        say(f"could not print ({error.strerror or error}); files that were finished are kept")
        sys.exit(UNSAVED)
    except SystemExit as end:
        if end.code not in (INTERRUPTED, TERMINATED):
            raise
        sys.stderr.flush()
        os._exit(end.code)  # an interrupted compilation may crash the interpreter when it cleans up
