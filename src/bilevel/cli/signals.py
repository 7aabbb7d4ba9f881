"""Ctrl-C and SIGTERM: the command stops, says what is left of its work, and exits with 130 or 143."""

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from bilevel.cli.errors import INTERRUPTED, TERMINATED, say

AGAIN_SECONDS = 0.02


@contextmanager
def stoppable(last_words: Callable[[], str]) -> Iterator[None]:
    """Within, SIGTERM does what Ctrl-C does; a `KeyboardInterrupt` that gets here ends the command with a sentence."""
    terminated = threading.Event()

    def term(number: int, frame: FrameType | None) -> None:
        terminated.set()
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):  # `bl.run` has its own, which finishes the step under way
            interrupt(signal.SIGINT, frame)
        else:
            raise KeyboardInterrupt

    with _term_is(term), _sent_again():
        try:
            yield
        except KeyboardInterrupt:
            say(f"stopped; {last_words()}")
            raise typer.Exit(TERMINATED if terminated.is_set() else INTERRUPTED) from None


@contextmanager
def _term_is(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    # Only the main thread may do this, and a handler that somebody else installed is not ours to replace.
    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _sent_again() -> Iterator[None]:
    """An interrupt that falls where Python drops exceptions, as in the collector of garbage, comes again."""
    usual = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            again = threading.Timer(AGAIN_SECONDS, _interrupt_main_thread)
            again.daemon = True
            again.start()
        else:
            usual(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


def _interrupt_main_thread() -> None:
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        # This also wakes the main thread if it waits.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
