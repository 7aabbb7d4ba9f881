"""Figure of the comparison: a column per task, oracle calls above, seconds below."""

from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from bilevel.lab.compare.measurement import Curve, Point
from bilevel.lab.compare.methods import FAMILIES, METHODS, YOURS, Method
from bilevel.lab.compare.tasks import Task
from bilevel.lab.figures import save_figure
from bilevel.plot.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION

# A hue per family; within a family dashes and markers distinguish methods, also in gray.
HUES: dict[str, str] = dict(zip(FAMILIES, (BLUE, VERMILION, GREEN, PURPLE, BLACK, ORANGE), strict=True))
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
SETTINGS: Any = {"font.size": 9, "axes.grid": True, "grid.color": "#e4e4e4", "svg.hashsalt": "bilevel"}
SETTINGS |= {"text.parse_math": False}  # a name with a dollar sign is a name
FLOOR = 1e-12  # below that, ‖∇Φ‖ is rounding
LEGEND_ROWS = 5
PANEL, LEGEND_COLUMN = 5.0, 2.3  # inches


def looks(methods: list[Method]) -> dict[str, dict[str, Any]]:
    """Return the line style of every method: fixed for ours, in order for others."""
    styles, drawn = {}, Counter[str]()
    for name, family in {method.name: family_of(method) for method in [*METHODS, *methods]}.items():
        hue, place = HUES[family], drawn[family]
        styles[name] = {
            "color": hue,
            "linestyle": DASHES[place % len(DASHES)],
            "marker": MARKERS[place % len(MARKERS)],
            "markersize": 4.5,
            "markerfacecolor": hue if place < len(DASHES) else "white",
            "linewidth": 1.3,
        }
        drawn[family] += 1
    return {method.name: styles[method.name] for method in methods}


def family_of(method: Method) -> str:
    """Return the family. Unknown families are drawn as the user's."""
    return method.family if method.family in FAMILIES else YOURS


def draw(results: dict[str, tuple[Task, list[Curve]]]) -> Figure:
    with mpl.rc_context(SETTINGS):
        named = {curve.method.name: curve.method for _, curves in results.values() for curve in curves}
        methods = list(named.values())
        styles, columns = looks(methods), _columns(methods)
        width = max(PANEL * len(results), LEGEND_COLUMN * len(columns)) + 0.6
        figure = Figure(figsize=(width, 9.6), layout="constrained")
        panels = figure.subplots(2, len(results), squeeze=False)
        for column, (task, curves) in enumerate(results.values()):
            _panel(panels[0, column], task, curves, styles, "calls", "oracle calls: gradients + products")
            _panel(panels[1, column], task, curves, styles, "seconds", "seconds, without compilation")
            panels[0, column].set_title(task.title, fontsize=11)
        _legend(figure, columns, styles)
    return figure


def save(figure: Figure, folder: Path) -> list[Path]:
    return [save_figure(figure, folder / f"compare.{kind}", dpi=160) for kind in ("png", "svg")]


def _panel(
    axes: Axes, task: Task, curves: list[Curve], styles: dict[str, dict[str, Any]], against: str, label: str
) -> None:
    for curve in curves:
        shown = _worth_showing(curve.points, FLOOR if task.x64 else 0.0)
        at, values = [getattr(p, against) for p in shown], [p.value for p in shown]
        axes.plot(at, values, markevery=max(1, len(shown) // 6), **styles[curve.method.name])
        if shown and not np.isfinite(curve.points[-1].value):
            axes.plot(at[-1:], values[-1:], "x", color="#b00020", markersize=9, markeredgewidth=2, zorder=5)
            end, text = (at[-1], values[-1]), f"{curve.method.name} diverges"
            axes.annotate(text, end, (6, 4), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel=task.label)
    axes.xaxis.set_minor_formatter(NullFormatter())  # labels between decades would overlap
    if not task.x64:  # less than a decade: plain numbers at the ticks
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
    axes.spines[["top", "right"]].set_visible(False)


def _worth_showing(points: list[Point], floor: float) -> list[Point]:
    """Return the points while they are finite, up to the first at the floor."""
    shown = []
    for point in points:
        if not np.isfinite(point.value):
            break
        shown.append(point._replace(value=max(point.value, floor)))
        if point.value <= floor:
            break
    return shown


def _columns(methods: list[Method]) -> list[tuple[str, list[str]]]:
    """Return the legend's columns with families as heads. A long family continues in the next column."""
    columns = []
    for family in FAMILIES:
        members = [method.name for method in methods if family_of(method) == family]
        for start in range(0, len(members), LEGEND_ROWS):
            columns.append(("" if start else family, members[start : start + LEGEND_ROWS]))
    return columns


def _legend(figure: Figure, columns: list[tuple[str, list[str]]], styles: dict[str, dict[str, Any]]) -> None:
    longest = max(len(members) for _, members in columns)
    blank = Line2D([], [], linestyle="none")
    handles, labels = [], []
    for family, members in columns:
        padding = longest - len(members)
        handles += [blank] + [Line2D([], [], **styles[name]) for name in members] + [blank] * padding
        labels += [family, *members] + [""] * padding
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=len(columns), frameon=False, handlelength=3.6
    )
    for text, label in zip(legend.get_texts(), labels, strict=True):
        if label in FAMILIES:
            text.set_fontweight("bold")
