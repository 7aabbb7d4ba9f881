"""Progress bar and live view of a run, on a terminal or in a notebook, and progress in a log."""

from contextlib import suppress
from typing import Any

import jax
import numpy as np

from bilevel.checks import check_kind, check_positive
from bilevel.loop.columns import NAMES, numbers_in, title
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event
from bilevel.loop.hooks.outlook import History, Outlook, outlook
from bilevel.words import shown

OFTEN = 0.5  # least seconds between two pictures
GONE = (OSError, ValueError)  # raised by writing to a closed terminal
INNER = "inner gradient"


class Display(Hook):
    """Base class of hooks that draw a run, between chunks and at most twice per second."""

    reads_info = False
    steers = False
    once = True  # of several processes, only the first draws
    _logs = False  # whether it writes lines where there is no terminal
    _console: Any = None  # standard error
    _screen: Any = None

    def begin(self, event: Event) -> None:
        from rich.console import Console

        from bilevel.loop.hooks.drawing import screen

        self.close()
        self._screen = screen(self._console or Console(stderr=True), self._logs)
        # Where the rate is measured from. The first chunk includes compilation and does not count for later ones.
        self._marks = [(event.step, event.seconds)]
        self._drawn = 0.0
        # The position of the run. Keeping the event would keep the arrays of the run.
        self._now = event.name, event.step, event.total, event.seconds, np.nan
        self.draw()

    def __call__(self, event: Event) -> None:
        if self._screen is None:
            return
        is_first, (step, seconds) = len(self._marks) == 1, self._marks[-1]
        due = is_first or event.step == event.total or event.seconds - self._drawn >= OFTEN
        self.collect(event, due)
        rate = (event.step - step) / max(event.seconds - seconds, 1e-9)
        self._now = event.name, event.step, event.total, event.seconds, rate
        if is_first:
            self._marks.append((event.step, event.seconds))
        if due:
            self._drawn = event.seconds
            self.draw()

    def collect(self, event: Event, due: bool) -> None:
        """Read the numbers of an event. If `due`, a picture follows."""

    def picture(self) -> Any:
        """Return the picture for rich."""

    def draw(self) -> None:
        if self._screen is not None:
            try:
                self._screen.show(self.picture())
            except GONE:  # no reason to end a run
                self.close()

    def end(self, result: Any) -> None:
        self.draw()
        self.close()

    def close(self) -> None:
        """Release the terminal."""
        screen, self._screen = self._screen, None
        if screen is not None:
            with suppress(*GONE):
                screen.close()


class Progress(Display):
    """Draw a bar with the rate, f and ‖∇Φ‖ on standard error if that is a terminal, or in a notebook's cell.

    Elsewhere, as in the log of a job, write one line per minute, also with the newest numbers of probes. Of a
    sweep it shows the lowest values among the lanes.
    """

    _logs = True

    def begin(self, event: Event) -> None:
        self._numbers, self._probed = "", dict[str, float]()
        super().begin(event)

    def collect(self, event: Event, due: bool) -> None:
        outer, norm = (
            np.nanmin(np.asarray(event.column(name))[..., -1], initial=np.inf)
            for name in ("outer_value", "hypergradient_norm")
        )
        self._numbers = f"f {outer:.4g}  ‖∇Φ‖≈{norm:.2e}"
        self._probed |= event.probed_numbers()

    def picture(self) -> Any:
        from bilevel.loop.hooks.drawing import View

        return View(*self._now, numbers=self._numbers, probed=dict(self._probed))


class Live(Display):
    """Draw the course of a run, on standard error if that is a terminal, or in a notebook's cell.

        bl.run(solver, x0, y0, steps=10_000, progress="live")

    It shows the trends of the outer value, the hypergradient, residuals, metrics and probes, the rate, the
    time left, and the status if the run ended now. It draws between chunks, at most twice per second. In a sweep it
    shows the lowest values among the lanes. The norm of the inner gradient is from the newest step, for
    states of up to 1 MiB. Other output of the program appears above the view. Without a terminal or a
    notebook, nothing is shown.

    Args:
        tol: the tolerance to compare with; `progress="live"` passes the one of the run.
        console: a `rich.console.Console` to draw on instead of standard error.
    """

    def __init__(self, *, tol: float | None = None, console: Any = None):
        if tol is not None:
            check_positive(tol, "tolerance tol", traced=False)
        if console is not None:
            from rich.console import Console

            check_kind(
                console, Console, "console", "a rich.console.Console", "leave it out for standard error"
            )
        self._console = console
        self.tol: float | None = tol

    def begin(self, event: Event) -> None:
        self._history = History()
        self._held = {INNER: np.nan}  # numbers that are not measured at every step
        self._outlook: Outlook | None = Outlook("starting", "", "fine")
        super().begin(event)

    def collect(self, event: Event, due: bool) -> None:
        leaves = jax.tree.leaves(getattr(event.info, "inner_gradient", None)) if due else []
        if leaves and all(getattr(leaf, "is_fully_addressable", False) for leaf in leaves):
            self._held[INNER] = np.sqrt(sum(np.sum(np.square(np.asarray(leaf, float))) for leaf in leaves))
        rows = numbers_in(event.trace, rank=event.trace["outer_value"].ndim)
        if event.trace["outer_value"].ndim == 2:  # the lanes of a sweep
            rows = {name: np.fmin.reduce(values, axis=0) for name, values in rows.items()}
        count = len(rows["outer_value"])
        self._held |= event.probed_numbers()
        held = {name: np.full(count, value) for name, value in self._held.items()}
        self._history.add(event.step - count, rows | held)
        self._outlook = None  # computed by `picture`

    def picture(self) -> Any:
        from bilevel.loop.hooks.drawing import Line, View

        history = self._history
        names = sorted(history.columns, key=lambda name: name not in (*NAMES, INNER))  # metrics are last
        lines = [
            Line(title(name), history.course(name), history.lowest[name])
            for name in names
            if name != INNER or np.isfinite(history.last[INNER])
        ]
        return View(*self._now, lines, self._outlook or outlook(history, self._now[1], self.tol))

    def end(self, result: Any) -> None:
        status: Any = getattr(result, "status", None)
        if hasattr(status, "code"):
            mood = "bad" if status.code in ("diverged", "failed") else "good"
            self._outlook = Outlook(str(status.code), status.message, mood)
        else:  # a sweep has many
            self._outlook = Outlook("swept", repr(result), "good")
        super().end(result)


def progress_hooks(progress: bool | str, tol: float | None = None) -> list[Display]:
    """Return the hooks for `progress=`."""
    if isinstance(progress, str) and progress == "live":
        return [Live(tol=tol)]
    if not isinstance(progress, bool):
        raise TypeError(
            f'progress must be True, False or "live", not {shown(progress)}: pass progress=True for a bar'
        )
    return [Progress()] if progress else []
