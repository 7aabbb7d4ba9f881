"""Exit statuses, and the line on standard error that explains one, also for usage errors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

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


class OneLine(TyperGroup):
    """Group of commands. Usage errors appear when a command is found and when its options are parsed."""

    words = "bilevel.cli.errors.words"  # key of the command line in the context

    def make_context(self, info_name: str | None, args: list[str], *given: Any, **named: Any) -> Any:
        words = tuple(args)  # the parser removes words from the list
        with _in_one_line(words):
            context = super().make_context(info_name, args, *given, **named)
        context.meta[self.words] = words
        return context

    def invoke(self, ctx: Any) -> Any:
        with _in_one_line(ctx.meta[self.words]):
            return super().invoke(ctx)


@contextmanager
def _in_one_line(words: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:  # in a command without `stoppable`
        fail("stopped", INTERRUPTED)
    except Exception as error:
        # Older versions of typer look up every path and do not catch the error of an impossible name.
        has_nul = isinstance(error, ValueError) and any("\0" in word for word in words)
        if has_nul or isinstance(error, UnicodeEncodeError):
            fail("a name of a file or folder cannot have a NUL or a lone surrogate: pass another name")
        # By name, because newer versions of typer have their own copy of click.
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "UsageError" not in kinds or "NoArgsIsHelpError" in kinds:
            raise
        message = " ".join(error.format_message().split()).rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
        context = getattr(error, "ctx", None)
        fail(f"{message}: see {context.command_path if context else 'bilevel'} --help")
