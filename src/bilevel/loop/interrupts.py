"""Ctrl-C as a request: the step under way is finished and kept. A second one is an order."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """While entered, the first Ctrl-C only sets `asked`; the next raises `KeyboardInterrupt` where it finds us."""

    def __init__(self):
        self.asked = False
        self._previous: Any = None

    def __enter__(self) -> "Interrupts":
        # Only the main thread receives signals, and a handler that somebody else installed is not ours to replace.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
