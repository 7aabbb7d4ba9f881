"""Ctrl-C and SIGTERM: the command stops, says what is left of its work, and exits with 130 or 143."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from bilevel.cli.errors import INTERRUPTED, TERMINATED, say


@contextmanager
def stoppable(last_words: Callable[[], str]) -> Iterator[None]:
    """Within, SIGTERM is a `KeyboardInterrupt` as Ctrl-C is; one that gets here ends the command with a sentence."""
    terminated = threading.Event()

    def note(number: int, frame: FrameType | None) -> NoReturn:
        terminated.set()
        raise KeyboardInterrupt

    # Only the main thread may do this, and a handler that somebody else installed is not ours to replace.
    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, note)
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {last_words()}")
        raise typer.Exit(TERMINATED if terminated.is_set() else INTERRUPTED) from None
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
