"""Handling of Ctrl-C and SIGTERM: stop the command, report the saved results, and exit with 130 or 143."""

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
    """Treat SIGTERM like Ctrl-C, and end the command with one line after an uncaught `KeyboardInterrupt`."""
    terminated = threading.Event()

    def terminate(number: int, frame: FrameType | None) -> None:
        terminated.set()
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):  # `bl.run` has its own handler, which finishes the current step
            interrupt(signal.SIGINT, frame)
        else:
            raise KeyboardInterrupt

    hook = sys.unraisablehook
    # Only the main thread can set a handler. A handler that the user installed stays.
    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, terminate)
    sys.unraisablehook = lambda dropped: _send_again(dropped, hook)
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {last_words()}")
        raise typer.Exit(TERMINATED if terminated.is_set() else INTERRUPTED) from None
    finally:
        sys.unraisablehook = hook
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _send_again(dropped: Any, hook: Callable[[Any], Any]) -> None:
    """Send an interrupt again that Python dropped, for example in the garbage collector."""
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        again = threading.Timer(AGAIN_SECONDS, signal.raise_signal, [signal.SIGINT])
        if sys.platform != "win32":  # this also wakes the main thread if it waits
            main = threading.main_thread().ident or 0
            again = threading.Timer(AGAIN_SECONDS, signal.pthread_kill, [main, signal.SIGINT])
        again.daemon = True
        again.start()
    else:
        hook(dropped)
