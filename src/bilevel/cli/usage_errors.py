"""A command that is called in a wrong way, or stopped at once, says so in one line, as all that is refused does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from bilevel.cli.errors import INTERRUPTED, fail

WORDS = "bilevel.cli.usage_errors.words"  # of the command line, in the context


class OneLine(TyperGroup):
    """The commands. What is wrong with a call shows when they are looked up and when their options are read."""

    def make_context(self, info_name: str | None, args: list[str], *given: Any, **named: Any) -> Any:
        words = tuple(args)  # the parser takes words off the list
        with _in_one_line(words):
            context = super().make_context(info_name, args, *given, **named)
        context.meta[WORDS] = words
        return context

    def invoke(self, ctx: Any) -> Any:
        with _in_one_line(ctx.meta[WORDS]):
            return super().invoke(ctx)


@contextmanager
def _in_one_line(words: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:  # where a command is not `stoppable`, having little to stop
        fail("stopped", INTERRUPTED)
    except Exception as error:
        # Older versions of typer ask the disk about every path and do not catch what it raises for such a name.
        has_nul = isinstance(error, ValueError) and any("\0" in word for word in words)
        if has_nul or isinstance(error, UnicodeEncodeError):
            fail("no file or folder can have a name with a NUL or a lone surrogate in it: pass another")
        # By name: typer brings a click of its own from some version on.
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "UsageError" not in kinds or "NoArgsIsHelpError" in kinds:
            raise
        message = " ".join(error.format_message().split()).rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "bilevel"
        fail(f"{message}: see {path} --help")
