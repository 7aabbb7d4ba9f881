"""A loader asked ahead, in a thread of its own: what takes time there passes while the device works."""

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import jax

from bilevel.checks import check_count

DEPTH = 2  # steps' data ahead, unless told otherwise
SLOW = 1e-3  # seconds that a loader takes over a step's data, from which on a thread is worth its while
OVER = object()
NOTE = "It was raised in the thread that asks the loader ahead: bl.RunOptions(prefetch=0) asks it in your thread."


def check_prefetch(prefetch: Any) -> int | None:
    return None if prefetch is None else check_count(prefetch, "prefetch", least=0, most=1000, such_as=DEPTH)


class Ahead:
    """Calls `pull` at most `count` times, never more than `depth` ahead of who takes what it returned.

    What it raises comes in its place, and is the last; so is a `None`.
    """

    def __init__(self, pull: Callable[[], Any], depth: int, count: int):
        self._pull, self._depth, self._count = pull, depth, count
        self._ready, self._changed = deque(), threading.Condition()
        self._failure: BaseException | None = None
        self._stopped = self._over = False
        # JAX's settings belong to a thread, so that these two must be made anew.
        self._settings = jax.config.jax_enable_x64, jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._work,), name="bilevel-loader", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        x64, device = self._settings
        try:
            with jax.enable_x64(x64), jax.default_device(device):
                while self._count and self._may_go_on():
                    got = self._pull()
                    self._count = self._count - 1 if got is not None else 0
                    with self._changed:
                        self._ready.append(got)
                        self._changed.notify_all()
        except BaseException as error:
            error.add_note(NOTE)
            self._failure = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _may_go_on(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._ready) < self._depth)
            return not self._stopped

    def take(self) -> Any:
        """The next, when it is there; `OVER` if there are no more to come."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._over)
            if self._ready:
                got = self._ready.popleft()
                self._changed.notify_all()
                return got
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return OVER

    def stop(self) -> bool:
        """No further call; whether there was none under way either."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            return self._over

    def rest(self) -> tuple[list[Any], BaseException | None]:
        """What nobody took, once the last call has returned.

        Not by `Thread.join` alone: one that Ctrl-C breaks off makes the next return at once, though the thread goes on.
        """
        self.stop()
        with self._changed:
            self._changed.wait_for(lambda: self._over)
        self._thread.join()  # it has nothing more to do
        return list(self._ready), self._failure
