"""Ctrl-C and SIGTERM as requests: the current step is finished and kept. A second one ends it at once."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from bilevel.loop.policies import Alone

TERMINATED = 128 + signal.SIGTERM  # the exit status of a program that SIGTERM ended, as shells write it


class Interrupts:
    """Context in which the first Ctrl-C only sets `asked`, and the next one raises `KeyboardInterrupt`.

    In a run of several processes it sets `heard`, and `agree` sets `asked` in all of them. After `heed_term`,
    SIGTERM sets `asked` and `terminated`; the next one ends the program at once.
    """

    def __init__(self, several: bool = False):
        self.asked: bool = False
        self.terminated: bool = False
        self.heard: bool = False
        self.heard_term: bool = False
        self._heeds_term = False
        self._several = several
        self._previous: dict[int, Any] = {}

    def heed_term(self) -> None:
        """Let SIGTERM ask the run to end, as Ctrl-C does."""
        self._heeds_term = True

    def ask(self) -> None:
        """Ask the run to end."""
        self.asked = True

    def hear(self) -> None:
        """Note that one of several processes was asked."""
        self.heard = True

    def __enter__(self) -> "Interrupts":
        # Only the main thread receives signals. Handlers of other libraries stay.
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupted)
            if self._heeds_term and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
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
        self.asked = self.asked or not self._several

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if self.heard_term:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.heard = self.heard_term = True
        if not self._several:
            self.asked = self.terminated = True

    def agree(self, team: Alone) -> None:
        """Pass a request to one process on to all."""
        if team.several:
            told = team.all([self.heard, self.heard_term])
            self.asked = self.asked or any(asked for asked, _ in told)
            self.terminated = self.terminated or any(term for _, term in told)
