"""A live view of a run: its numbers, their trends, and what its status would be now."""

import sys
from contextlib import suppress
from io import StringIO
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel.checks import check_kind, check_positive
from bilevel.loop.columns import NAMES, numbers_in, title
from bilevel.loop.hooks.base import Event, Hook
from bilevel.loop.hooks.history import History
from bilevel.loop.hooks.outlook import Outlook, outlook
from bilevel.loop.hooks.progress_bar import Progress, is_terminal
from bilevel.words import shown

OFTEN = 0.5  # seconds between two pictures, at least
GONE = (OSError, ValueError)  # what writing to a terminal raises that was closed
INNER = "inner gradient"
NOTEBOOK = 96  # characters, the width of the view in a notebook


class _Moment(NamedTuple):
    """Where a run is."""

    name: str
    step: int
    total: int
    seconds: float

    @classmethod
    def of(cls, event: Event) -> "_Moment":
        return cls(event.name, event.step, event.total, event.seconds)


class Live(Hook):
    """Shows, on standard error if that is a terminal or in a notebook's cell, how a run goes: the trends of the outer
    value, the hypergradient, residuals and metrics, the rate, the time left, and what the status would be now.

        bl.run(solver, x0, y0, steps=10_000, progress="live")

    It looks between chunks, at most twice a second. Of a sweep it shows the lowest values among the lanes. The
    norm of the inner gradient is that of the newest step, for states of up to 1 MiB. What is printed meanwhile appears
    above it. Elsewhere it shows nothing.

    Args:
        tol: the tolerance to compare with; `progress="live"` passes on that of the run.
        console: a `rich.console.Console` to draw on, if not standard error.
    """

    reads_info = False
    steers = False
    once = True  # of several processes, in the first alone

    def __init__(self, *, tol: float | None = None, console: Any = None):
        if tol is not None:
            check_positive(tol, "tolerance tol", traced=False)
        if console is not None:
            from rich.console import Console

            check_kind(
                console, Console, "console", "a rich.console.Console", "leave it out for standard error"
            )
        self.tol: float | None = tol
        self._given: Any = console
        self._screen: Any = None
        self._history, self._inner = History(), History()
        self._new: list[dict[str, Any]] = []  # rows that are not in the history yet

    def begin(self, event: Event) -> None:
        from rich.console import Console

        self.close()
        console = self._given or Console(stderr=True)
        self._screen = _Cell() if console.is_jupyter else _Terminal(console) if console.is_terminal else None
        self._history, self._inner = History(), History()
        self._now = _Moment.of(event)  # not the event, which would keep the run's arrays
        self._began, self._compiled, self._drawn, self._new = self._now, None, 0.0, []
        self._show(Outlook("starting", "", "fine"))

    def __call__(self, event: Event) -> None:
        if self._screen is None:
            return
        count = event.trace["outer_value"].shape[-1]  # of a sweep, lanes come first
        if self._new and event.step - count != self._now.step:  # the run has gone back
            self._remember()
        self._new.append(event.trace)
        self._now = _Moment.of(event)
        self._compiled = self._compiled or self._now
        if event.seconds - self._drawn >= OFTEN or event.step in (count, event.total):
            self._drawn = event.seconds
            self._remember()
            self._look(event)
            self._show(outlook(self._history, event.step, self.tol))

    def _remember(self) -> None:
        """The rows since the last picture, up to the present moment."""
        new, self._new = self._new, []
        lanes = new[0]["outer_value"].ndim == 2
        rows = {
            name: np.concatenate([trace[name] for trace in new], axis=-1)
            for name in numbers_in(new[0], rank=2 if lanes else 1)
        }
        count = rows["outer_value"].shape[-1]
        least = lambda values: np.fmin.reduce(values, axis=0) if lanes else values
        self._history.add(self._now.step - count, {name: least(values) for name, values in rows.items()})

    def _look(self, event: Event) -> None:
        """At the inner gradient, where it is there."""
        leaves = jax.tree.leaves(getattr(event.info, "inner_gradient", None))
        if leaves and all(getattr(leaf, "is_fully_addressable", False) for leaf in leaves):
            squares = sum(float(np.sum(np.square(np.asarray(leaf, float)))) for leaf in leaves)
            self._inner.add(self._inner.newest + 1, {INNER: np.sqrt([squares])})

    def _show(self, verdict: Outlook) -> None:
        if self._screen is None:
            return
        from bilevel.loop.hooks.drawing import Line, View

        lines = [
            Line(title(n), self._history.course(n), self._history.lowest[n]) for n in self._history.columns
        ]
        wide = len(lines[0].course) if lines else 0
        lines += [
            Line(n, _as_wide(self._inner.course(n), wide), self._inner.lowest[n]) for n in self._inner.columns
        ]
        first = [title(name) for name in NAMES]
        lines.sort(key=lambda line: line.title not in (*first, INNER))  # before the metrics
        try:
            self._screen.show(View(*self._now, self._rate(), lines, verdict))
        except GONE:  # no reason to end a run
            self.close()

    def _rate(self) -> float:
        """Steps a second, without those of the first chunk, in which the program was compiled."""
        if self._compiled is None:
            return np.nan
        since = self._began if self._compiled == self._now else self._compiled
        return (self._now.step - since.step) / max(self._now.seconds - since.seconds, 1e-9)

    def end(self, result: Any) -> None:
        status = getattr(result, "status", None)
        if self._new:
            self._remember()
        if self._screen is not None and status is not None:
            one = hasattr(status, "code")  # of a sweep there are many
            word, said = (str(status.code), status.message) if one else ("swept", repr(result))
            bad = word in ("diverged", "failed")
            self._show(Outlook(word, said, "bad" if bad else "good"))
        self.close()

    def close(self) -> None:
        """The terminal is the user's again, whatever happened."""
        screen, self._screen = self._screen, None
        if screen is not None:
            with suppress(*GONE):
                screen.close()


def _as_wide(course: np.ndarray, count: int) -> np.ndarray:
    """There are fewer looks than steps: each stands for its share of them, and all trends end at one moment."""
    return course[np.arange(count) * len(course) // count] if 0 < len(course) < count else course


def progress_hooks(progress: bool | str, tol: float | None = None) -> list[Progress | Live]:
    """What `progress=` asks for."""
    if isinstance(progress, str) and progress == "live":
        return [Live(tol=tol)]
    if not isinstance(progress, bool):
        raise TypeError(
            f'progress must be True, False or "live", not {shown(progress)}: pass progress=True for a bar'
        )
    return [Progress()] if progress else []


class _Terminal:
    """By rich, which puts what is printed meanwhile above the view."""

    def __init__(self, console: Any):
        from rich.live import Live as Region

        # Only what would appear on the same terminal: what is piped into a file belongs there.
        out, err = is_terminal(sys.stdout), is_terminal(sys.stderr)
        self._region = Region(console=console, auto_refresh=False, redirect_stdout=out, redirect_stderr=err)
        self._region.start()

    def show(self, view: Any) -> None:
        self._region.update(view, refresh=True)

    def close(self) -> None:
        self._region.stop()


class _Cell:
    """In a notebook: one output that is replaced, which needs no widgets."""

    def __init__(self):
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self._output: Any = display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, view: Any) -> None:
        from rich.console import Console

        console = Console(file=StringIO(), record=True, width=NOTEBOOK, force_jupyter=False)
        console.print(view)
        frame = '<pre style="line-height:1.3;white-space:pre">{code}</pre>'
        html = console.export_html(inline_styles=True, code_format=frame, clear=False)
        self._output.update({"text/html": html, "text/plain": console.export_text()}, raw=True)

    def close(self) -> None:
        """The last picture stays."""
