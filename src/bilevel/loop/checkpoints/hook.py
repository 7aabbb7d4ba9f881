"""Hook that saves a run to disk while it runs."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from bilevel.checks import check_count
from bilevel.loop.checkpoints.contents import packed
from bilevel.loop.checkpoints.folder import Folder, as_folder, numbers_in, reason, set_aside
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event
from bilevel.loop.options import rhythm
from bilevel.loop.policies import Alone
from bilevel.loop.result import Result

SHARE = 0.05  # the largest share of the time for saving by the clock


class Checkpoint(Hook):
    """Save the whole run: its state, trace, probes, and the states of hooks. Needs `bilevel[checkpoint]`.

        bl.run(solver, x0, y0, steps=10**6, hooks=[bl.hooks.Checkpoint("runs/first")], resume="auto")

    `bl.run(..., checkpoint="runs/first")` is short for this. Checkpoints are written in the background during
    the run. Each is complete or absent. If one cannot be written (a full disk), the run continues. It warns
    at once, and the final status repeats it. After SIGTERM a run saves first, and the program exits with
    status 143.

    Args:
        folder: where to save; created if it does not exist. One run at a time.
        save_every: a number of steps, or a `datetime.timedelta`. By default once a minute, or less often if
            that took more than a twentieth of the time. The end is always saved.
        keep: how many checkpoints to keep; older ones are removed.
    """

    of_one_run = True  # not of a sweep
    reads_info = False
    last = True  # after the hooks whose states it saves
    saves = True
    steers = False
    stride: int | None
    note: str

    def __init__(self, folder: str | Path, *, save_every: int | timedelta | None = None, keep: int = 3):
        self.path: Path = as_folder(folder, "checkpoint")
        self.stride, self._pause = rhythm(save_every)  # chunks end at multiples of the stride
        self._by_clock = save_every is None
        self._folder = Folder(self.path, check_count(keep, "keep"))
        self.saved: int | None = None  # the last saved step
        self.note = ""  # for the status at the end
        self._prepared = False

    def take(self, team: Alone, *, going_on: bool) -> None:
        """Lock the folder before any work is done, in the first of several processes."""
        self._team = self._folder.team = team
        team.lead(lambda: self._take(going_on))

    def _take(self, going_on: bool) -> None:
        self._folder.open()
        if numbers_in(self.path) and not going_on:
            self.release()
            raise ValueError(
                f'there is a run in {str(self.path)!r} already: pass resume="auto" to go on with it, or another folder'
            )

    def prepare(self, origin: dict[str, Any], hooks: Sequence[Any], damaged: Sequence[int]) -> None:
        """Prepare for a run with this origin and these hooks, and set damaged checkpoints aside."""
        self._team.lead(lambda: [set_aside(self.path, number) for number in damaged])
        self._number = self._team.first(max(numbers_in(self.path), default=0))
        self._origin, self._hooks = origin, [hook for hook in hooks if hook is not self]
        self.saved, self.note, self._why, self._said, self._writing = None, "", "", "", None
        self._next, self._prepared = time.monotonic() + self._pause, True

    def release(self) -> None:
        """Release the folder."""
        self._folder.close()
        self._prepared = False

    def begin(self, event: Event) -> None:
        if not self._prepared:
            raise RuntimeError("a Checkpoint hook belongs into hooks= of bl.run, which prepares its folder")

    def __call__(self, event: Event) -> None:
        due = (
            event.step % self.stride == 0 if self.stride else self._team.first(time.monotonic() >= self._next)
        )
        if due and event.step < event.total:  # the end is saved with its own status
            self._save(event.so_far)

    def end(self, result: Result) -> None:
        try:
            if result.steps and not self._team.lost:  # an unfinished warm-up starts again
                self._save(lambda: result)
            self._settle()
            if self._why:
                safe = "none is" if self.saved is None else f"the last one that is, is of step {self.saved}"
                self.note = (
                    f" Not every checkpoint could be saved in {str(self.path)!r} ({self._why}): {safe}."
                )
        finally:
            self._prepared = False

    def _save(self, so_far: Callable[[], Result]) -> None:
        began = time.monotonic()
        self._settle()
        result = so_far()
        try:
            contents, arrays, left_out = packed(result, self._hooks, self._origin)
            self._number += 1
            self._writing = result.steps, self._folder.save(self._number, contents, arrays)
            if left_out not in self._said:
                self._warn(f"{left_out}: the rest of the run is saved")
        except Exception as error:
            self._failed(error, result.steps)
        took = time.monotonic() - began
        self._next = time.monotonic() + max(self._pause, took / SHARE if self._by_clock else 0.0)

    def _settle(self) -> None:
        """Wait for the checkpoint in the background, if any."""
        if self._writing is not None:
            (step, wait), self._writing = self._writing, None
            try:
                wait()
                self.saved = step
            except Exception as error:
                self._failed(error, step)

    def _failed(self, error: Exception, step: int) -> None:
        first, self._why = not self._why, reason(error)
        if first:
            where = f"{str(self.path)!r} ({self._why})"
            self._warn(f"step {step} could not be saved in {where}: the run continues and tries again")

    def _warn(self, sentence: str) -> None:
        self._said += sentence
        with suppress(RuntimeWarning):  # must not end the run where warnings are errors
            warnings.warn(sentence, RuntimeWarning, stacklevel=3)
