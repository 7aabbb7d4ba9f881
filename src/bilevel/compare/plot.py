"""The comparison as one figure: a column per task, oracle calls above, seconds below. Computes nothing."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from bilevel.compare.measure import Curve, Point
from bilevel.compare.methods import FAMILIES, METHODS
from bilevel.compare.tasks import Task

# A hue per family (Okabe and Ito's palette); within a family dashes and markers tell methods apart, also in grey.
HUES: dict[str, str] = dict(
    zip(FAMILIES, ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"), strict=True)
)
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
FLOOR = 1e-12  # below that, ‖∇Φ‖ is rounding
LEGEND_ROWS = 5


def look(name: str) -> dict:
    """The line style of a method, the same in every panel and every run."""
    method = next(m for m in METHODS if m.name == name)
    place = [m.name for m in METHODS if m.family == method.family].index(name)
    return {
        "color": HUES[method.family],
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
        "markersize": 4.5,
        "markerfacecolor": HUES[method.family] if place < len(DASHES) else "white",
        "linewidth": 1.3,
    }


def draw(results: dict[str, tuple[Task, list[Curve]]]) -> Figure:
    with mpl.rc_context(
        {"font.size": 9, "axes.grid": True, "grid.color": "#e4e4e4", "svg.hashsalt": "bilevel"}
    ):
        figure = Figure(figsize=(5.0 * len(results) + 0.6, 9.6), layout="constrained")
        panels = figure.subplots(2, len(results), squeeze=False)
        for column, (task, curves) in enumerate(results.values()):
            _panel(panels[0, column], task, curves, "calls", "oracle calls: gradients + products")
            _panel(panels[1, column], task, curves, "seconds", "seconds, without compilation")
            panels[0, column].set_title(task.title, fontsize=11)
        _legend(figure, {curve.method.name for _, curves in results.values() for curve in curves})
    return figure


def save(figure: Figure, folder: Path) -> list[Path]:
    paths = [folder / f"compare.{kind}" for kind in ("png", "svg")]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=160, metadata=metadata)
    return paths


def _panel(axes: Axes, task: Task, curves: list[Curve], against: str, label: str) -> None:
    for curve in curves:
        shown = _worth_showing(curve, FLOOR if task.x64 else 0.0)
        at, values = [getattr(p, against) for p in shown], [p.value for p in shown]
        axes.plot(at, values, markevery=max(1, len(shown) // 6), **look(curve.method.name))
        if shown and not np.isfinite(curve.points[-1].value):
            axes.plot(at[-1:], values[-1:], "x", color="#b00020", markersize=9, markeredgewidth=2, zorder=5)
            axes.annotate(
                f"{curve.method.name} diverges", (at[-1], values[-1]), (6, 4), textcoords="offset points"
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())  # labels between decades would overlap
    if not task.x64:  # less than a decade: plain numbers at the ticks
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel(label)
    axes.set_ylabel(task.label)
    axes.spines[["top", "right"]].set_visible(False)


def _worth_showing(curve: Curve, floor: float) -> list[Point]:
    """The points while they are finite, up to the first at the floor."""
    shown = []
    for point in curve.points:
        if not np.isfinite(point.value):
            break
        shown.append(point._replace(value=max(point.value, floor)))
        if point.value <= floor:
            break
    return shown


def _legend(figure: Figure, names: set[str]) -> None:
    """Columns headed by the families' names; a long family goes on in the next column."""
    columns = []
    for family in FAMILIES:
        members = [m.name for m in METHODS if m.family == family and m.name in names]
        for start in range(0, len(members), LEGEND_ROWS):
            columns.append(("" if start else family, members[start : start + LEGEND_ROWS]))
    longest = max(len(members) for _, members in columns)
    blank = Line2D([], [], linestyle="none")
    handles, labels = [], []
    for family, members in columns:
        padding = longest - len(members)
        handles += [blank] + [Line2D([], [], **look(name)) for name in members] + [blank] * padding
        labels += [family, *members] + [""] * padding
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=len(columns), frameon=False, handlelength=3.6
    )
    for text, label in zip(legend.get_texts(), labels, strict=True):
        if label in FAMILIES:
            text.set_fontweight("bold")
