"""A command that is called in a wrong way, or stopped at once, says so in one line, as all that is refused does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from bilevel.cli.errors import INTERRUPTED, fail


class OneLine(TyperGroup):
    """The commands. What is wrong with a call shows when they are looked up and when their options are read."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        with _in_one_line():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        with _in_one_line():
            return super().invoke(ctx)


@contextmanager
def _in_one_line() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:  # where a command is not `stoppable`, having little to stop
        fail("stopped", INTERRUPTED)
    except Exception as error:
        if _is_of_a_name(error):
            fail("no file or folder can have a name with a NUL or a lone surrogate in it: pass another")
        # By name: typer brings a click of its own from some version on.
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "UsageError" not in kinds or "NoArgsIsHelpError" in kinds:
            raise
        message = " ".join(error.format_message().split()).rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "bilevel"
        fail(f"{message}: see {path} --help")


def _is_of_a_name(error: Exception) -> bool:
    """Older typers ask the disk about every path that they are given, and do not hear what it says to such a name."""
    return isinstance(error, UnicodeEncodeError) or str(error) == "embedded null byte"
