"""Ctrl-C as a request: the step under way is finished and kept. A second one is an order. SIGTERM likewise."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from bilevel.loop.devices.processes import Team

TERMINATED = 128 + signal.SIGTERM  # the exit status of a program that SIGTERM ended, as shells write it


class Interrupts:
    """While entered, the first Ctrl-C only sets `asked`; the next raises `KeyboardInterrupt` where it finds us.

    Of a run of several processes, what one of them was asked is `heard`, and `asked` once all know: see `agree`.

    With `heeds_term`, SIGTERM sets `asked` and `terminated`; the next one ends the program at once.
    """

    def __init__(self):
        self.asked = self.terminated = self.heeds_term = False
        self.heard = self.heard_term = False
        self.team = Team()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        # Only the main thread receives signals, and a handler that somebody else installed is not ours to replace.
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupted)
            if self.heeds_term and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._terminated)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.heard:
            raise KeyboardInterrupt
        self.heard = True
        self.asked = self.asked or not self.team.several

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if self.heard_term:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.heard = self.heard_term = True
        if not self.team.several:
            self.asked = self.terminated = True

    def agree(self) -> None:
        """What one process was asked, all are."""
        if self.team.several:
            told = self.team.all([self.heard, self.heard_term])
            self.asked = self.asked or any(asked for asked, _ in told)
            self.terminated = self.terminated or any(term for _, term in told)
