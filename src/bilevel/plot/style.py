"""Style of all plots: colors that color-blind readers can distinguish, letters readable on a phone."""

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
DASHES = ("-", "--", "-.", ":")  # the next one for every round of colors
BROKEN = VERMILION  # the mark of a divergence
FAINT = "#bbbbbb"
FEW = 30  # lines of at most so many points have marks
FAR = 7.0  # room around the usual values, in units of their spread (or factors of e)
WIDE = 20.0  # the ratio of largest to smallest value from which an axis is logarithmic
WIDTH = 5.4  # inches: 11 points are 11 pixels on a narrow phone

LOCK = RLock()  # settings belong to the process: one thread would restore the settings of another


SETTINGS: Any = {
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


@contextmanager
def look() -> Iterator[None]:
    """Use the style inside, and restore the user's settings afterwards."""
    with LOCK, mpl.rc_context(SETTINGS):
        yield
        interactive = mpl.is_interactive()
    mpl.interactive(interactive)  # the first figure of a notebook loads its backend, which sets this


def panels(ax: Any, count: int) -> list[Axes]:
    """Return the given axes, or new ones below each other."""
    if ax is None:
        made = _figure(0.7 + 1.7 * count if count > 1 else 3.4).subplots(count, 1, sharex=True, squeeze=False)
        return list(made[:, 0])
    several = ax.flat if isinstance(ax, np.ndarray) else ax
    given = list(several) if isinstance(ax, np.ndarray | list | tuple) else [ax]
    if not given or not all(isinstance(one, Axes) for one in given):
        fix = "pass e.g. plt.gca(), or leave it out"
        raise TypeError(f"ax must be axes of matplotlib, not {shown(ax)}: {fix}")
    if any(one.figure is None for one in given):
        raise ValueError("ax was removed from its figure: pass axes that are in one, or leave it out")
    if len(given) != count:
        raise ValueError(f"ax has {len(given)} panels for {count} to draw: pass {count}, or leave it out")
    return given


def panel(ax: Any) -> Axes:
    return panels(ax, 1)[0]


def _figure(height: float) -> Figure:
    """Return a figure of pyplot if it is in use, because `plt.show()` and notebooks show no others."""
    ipython = sys.modules.get("IPython")
    if "matplotlib.pyplot" in sys.modules or (ipython is not None and ipython.get_ipython() is not None):
        from matplotlib import pyplot

        return pyplot.figure(figsize=(WIDTH, height), layout="constrained")
    return Figure(figsize=(WIDTH, height), layout="constrained")


def fit_scale(ax: Axes, *values: Any) -> None:
    """Use a logarithmic axis for positive values of different sizes. Change axes in use only if necessary."""
    every = np.concatenate([np.ravel(np.asarray(one, float)) for one in values])
    every = every[np.isfinite(every)]
    if not ax.has_data() and every.size and every.min() > 0 and every.max() / WIDE > every.min():
        ax.set_yscale("log")
    elif ax.has_data() and ax.get_yscale() == "log" and every.size and every.min() < 0:
        ax.set_yscale("linear")
        ax.autoscale(axis="y")


def keep_in_view(ax: Axes, usual: np.ndarray, every: np.ndarray) -> None:
    """Limit the axis if some values are far from the usual ones. Those would become a flat line."""
    usual, every = usual[np.isfinite(usual)], every[np.isfinite(every)]
    if not usual.size or not every.size:
        return
    there, back = (np.log, np.exp) if ax.get_yscale() == "log" else (np.asarray, np.asarray)
    low, high, least, most = there([usual.min(), usual.max(), every.min(), every.max()])
    room = FAR if ax.get_yscale() == "log" else FAR * max(high - low, 1e-3 * abs(high))
    if least < low - room or most > high + room:  # before drawing, because limits of matplotlib may overflow
        low, high = max(low - room, min(least, low)), min(high + room, max(most, high))
        ax.set_ylim(*back([low - 0.05 * (high - low), high + 0.05 * (high - low)]))


def draw_line(ax: Axes, steps: np.ndarray, values: np.ndarray, place: int, **style: Any) -> None:
    """Draw a line in the color of its index, with marks if it has few points."""
    color, dashes = COLORS[place % len(COLORS)], DASHES[place // len(COLORS) % len(DASHES)]
    default = {"color": color, "linestyle": dashes, "marker": mark(steps), "markersize": 4}
    ax.plot(steps, values, **default | style)
    if not np.isfinite(values).any():
        ax.text(0.5, 0.5, "finite at no step", transform=ax.transAxes, ha="center", va="center")


def mark(steps: Any) -> str:
    return "o" if len(steps) <= FEW else ""
