"""Prefetch thread of a loader: it reads batches while the device computes."""

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import jax

DEPTH = 2  # default number of steps to prefetch
SLOW = 1e-3  # seconds per step's data above which a thread pays off
OVER = object()
NOTE = "It was raised in the thread that asks the loader ahead: bl.RunOptions(prefetch=0) asks it in your thread."


class Ahead:
    """Thread that calls `pull` at most `count` times and keeps at most `depth` results.

    It ends after an error, which `take` raises, or after a result of `None`.
    """

    def __init__(self, pull: Callable[[], Any], depth: int, count: int):
        self._pull, self._depth, self._count = pull, depth, count
        self._results: deque[Any] = deque()
        self._changed = threading.Condition()
        self._stopped = self._over = False
        # JAX's settings belong to a thread, so the new thread needs these two.
        self._settings = jax.config.jax_enable_x64, jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._work,), name="bilevel-loader", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        x64, device = self._settings
        try:
            with jax.enable_x64(x64), jax.default_device(device):
                while self._count and self._has_room():
                    result = self._pull()
                    self._count = self._count - 1 if result is not None else 0
                    self._add(result)
            self._add(over=True)
        except BaseException as error:
            error.add_note(NOTE)
            self._add(error, over=True)

    def _has_room(self) -> bool:
        """Wait for room. Return false if the thread shall stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._results) < self._depth)
            return not self._stopped

    def _add(self, *results: Any, over: bool = False) -> None:
        with self._changed:
            self._results.extend(results)
            self._over = over
            self._changed.notify_all()

    def take(self) -> Any:
        """Wait for the next result and return it; `OVER` if there are no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._over)
            result = self._results.popleft() if self._results else OVER
            self._changed.notify_all()
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self) -> bool:
        """Stop further calls. Return whether the thread has ended."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            return self._over

    def finish(self) -> None:
        """Wait for the last call. Keep the results, but not the end of the loader: it may have more later.

        Waiting in `Thread.join` only is not safe: after Ctrl-C interrupts one join, the next returns at once
        although the thread still runs.
        """
        self.stop()
        with self._changed:
            self._changed.wait_for(lambda: self._over)
        self._thread.join()  # the thread has nothing more to do
        self._results = deque(result for result in self._results if result is not None)
