"""Style of all figures: colors for color-blind readers, and markers and dashes for gray prints."""

from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, StrMethodFormatter

from bilevel.plot.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY as SKY, VERMILION

Look = dict[str, Any]  # keyword arguments of a plotted line
EARLIER: Look = {"color": VERMILION, "linestyle": "--"}
PAPER: Look = {"color": BLUE, "linestyle": "-"}
SHARP: Look = {"color": GREEN, "linestyle": "-."}
STAR: Look = {"color": PURPLE, "linestyle": (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5))}
MEASURED: Look = {"color": BLACK, "marker": "o", "markersize": 3.5, "linestyle": "none"}
PAPER_RUN: Look = MEASURED | {"color": BLUE}
SHARP_RUN: Look = MEASURED | {"color": GREEN, "marker": "^"}
STAR_RUN: Look = MEASURED | {"color": PURPLE, "marker": "*", "markersize": 5}
LOWER: Look = {"color": ORANGE, "linestyle": ":", "linewidth": 2.2}
SETTINGS: Any = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "bilevel",  # element names that do not change from run to run
    "svg.fonttype": "path",
}


def house_style() -> AbstractContextManager[None]:
    return mpl.rc_context(SETTINGS)


def panel(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.8, 3.9), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11)
    return figure, axes


def finish(figure: Figure, axes: Axes, label: str, legend: Any) -> Figure:
    axes.set(yscale="log", ylabel=label)
    axes.legend(loc=legend)
    return figure


def kappa_axis(axes: Axes, ticks: tuple[float | int, ...]) -> None:
    axes.set(xscale="log", xlabel="condition number κ (log scale)")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
