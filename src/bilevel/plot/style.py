"""One look for all pictures: colors that color-blind readers tell apart, letters that a phone can show."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilevel.words import shown

# Okabe and Ito's palette
BLACK, BLUE, SKY, GREEN, ORANGE = "#000000", "#0072B2", "#56B4E9", "#009E73", "#E69F00"
PURPLE, VERMILION = "#CC79A7", "#D55E00"
COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, "#777777")
DASHES = ("-", "--", "-.", ":")  # for the second round of colors, and so on
BROKEN = VERMILION  # where a run diverged
FAINT = "#bbbbbb"
FEW = 30  # points up to which each is shown: a single one would make no line
FAR = 7.0  # how many times their spread a picture goes beyond the usual values, or by e to that
WIDE = 20.0  # the ratio of largest to smallest from which on an axis is logarithmic
WIDTH = 5.4  # inches: 11 points then are 11 pixels on the narrowest of phones


LOCK = RLock()  # settings are the whole process's: of two threads, one would restore the other's


@contextmanager
def look() -> Iterator[None]:
    """For what is drawn inside; matplotlib's settings are the user's again afterwards."""
    with (
        LOCK,
        mpl.rc_context(
            {
                "font.size": 11,
                "axes.titlesize": 11,
                "legend.fontsize": 10,
                "legend.edgecolor": "none",
                "legend.framealpha": 0.8,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.color": "#888888",
                "grid.alpha": 0.3,
                "grid.linewidth": 0.6,
                "lines.linewidth": 1.6,
            }
        ),
    ):
        yield
        interactive = mpl.is_interactive()
    mpl.interactive(interactive)  # a notebook's backend is loaded by the first figure, and says so then


def panels(ax: Any, count: int) -> list[Axes]:
    """The axes that were given, or new ones below each other."""
    if ax is None:
        made = _figure(0.7 + 1.7 * count if count > 1 else 3.4).subplots(count, 1, sharex=True, squeeze=False)
        return list(made[:, 0])
    given = (
        list(ax.flat) if isinstance(ax, np.ndarray) else list(ax) if isinstance(ax, list | tuple) else [ax]
    )
    if not given or not all(isinstance(one, Axes) for one in given):
        raise TypeError(
            f"ax must be axes of matplotlib, not {shown(ax)}: pass e.g. plt.gca(), or leave it out"
        )
    if any(one.figure is None for one in given):
        raise ValueError("ax was removed from its figure: pass axes that are in one, or leave it out")
    if len(given) != count:
        raise ValueError(f"ax has {len(given)} panels for {count} to draw: pass {count}, or leave it out")
    return given


def panel(ax: Any) -> Axes:
    return panels(ax, 1)[0]


def _figure(height: float) -> Figure:
    """One of pyplot's where it is in use, as `plt.show()` and notebooks show no others."""
    ipython = sys.modules.get("IPython")
    if "matplotlib.pyplot" in sys.modules or (ipython is not None and ipython.get_ipython() is not None):
        from matplotlib import pyplot

        return pyplot.figure(figsize=(WIDTH, height), layout="constrained")
    return Figure(figsize=(WIDTH, height), layout="constrained")


def fit_scale(ax: Axes, *values: Any) -> None:
    """Logarithmic, where all values are positive and of different sizes; axes in use stay, if they can show these."""
    every = np.concatenate([np.ravel(np.asarray(one, float)) for one in values])
    every = every[np.isfinite(every)]
    if not ax.has_data() and every.size and every.min() > 0 and every.max() / WIDE > every.min():
        ax.set_yscale("log")
    elif ax.has_data() and ax.get_yscale() == "log" and every.size and every.min() < 0:
        ax.set_yscale("linear")
        ax.autoscale(axis="y")


def keep_in_view(ax: Axes, usual: np.ndarray, every: np.ndarray) -> None:
    """Values that run far away from the usual ones leave the picture, which they would make one flat line of."""
    usual, every = usual[np.isfinite(usual)], every[np.isfinite(every)]
    if not usual.size or not every.size:
        return
    there, back = (np.log, np.exp) if ax.get_yscale() == "log" else (np.asarray, np.asarray)
    low, high, least, most = there([usual.min(), usual.max(), every.min(), every.max()])
    room = FAR if ax.get_yscale() == "log" else FAR * max(high - low, 1e-3 * abs(high))
    if (
        least < low - room or most > high + room
    ):  # before anything is drawn: matplotlib's own limits may overflow
        low, high = max(low - room, min(least, low)), min(high + room, max(most, high))
        ax.set_ylim(*back([low - 0.05 * (high - low), high + 0.05 * (high - low)]))


def draw_line(ax: Axes, steps: np.ndarray, values: np.ndarray, place: int, **style: Any) -> None:
    """A line in the color of its place; points as well, where there are few."""
    color, dashes = COLORS[place % len(COLORS)], DASHES[place // len(COLORS) % len(DASHES)]
    ax.plot(
        steps,
        values,
        **{"color": color, "linestyle": dashes, "marker": mark(steps), "markersize": 4} | style,
    )
    if not np.isfinite(values).any():
        ax.text(0.5, 0.5, "finite at no step", transform=ax.transAxes, ha="center", va="center")


def mark(steps: Any) -> str:
    return "o" if len(steps) <= FEW else ""
