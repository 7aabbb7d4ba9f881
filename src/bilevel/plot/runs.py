"""Plot of a sweep: one line per lane."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from bilevel.checks import check_kind, check_text
from bilevel.loop.columns import numbers_in, title
from bilevel.loop.status import Code
from bilevel.loop.summary import lane_names, ranked
from bilevel.loop.sweep import Sweep
from bilevel.plot.numbers import check_names
from bilevel.plot.style import COLORS, FAINT, draw_line, fit_scale, keep_in_view, look, mark, panel
from bilevel.words import listed, shown


def sweep(
    found: Sweep, name: str | None = None, *, labels: Sequence[Any] | None = None, ax: Any = None
) -> Axes:
    """Plot one column of the trace for every lane: the best lane is thick, diverged lanes end in a cross.

    With more than seven lanes, the best, the worst and five others have a color and a name. The others are gray.

    Args:
        found: a result of `bl.sweep`.
        name: a column with one number per step. Default: the metric of the choice of the best lane, or the outer value.
        labels: names of the lanes; default: the numbers in which the solvers differ, such as the step size.
        ax: matplotlib axes to draw into; default: a new figure.
    """
    check_kind(found, Sweep, "found", "what bl.sweep returns", "pass found = bl.sweep(...)")
    named = numbers_in(found.trace, rank=2)
    name = (found.metric if found.metric in named else "outer_value") if name is None else name
    check_text(name, "name", '"outer_value"')
    if name not in named:
        raise ValueError(f"name must be one of {listed(named)}, the numbers in the trace, not {shown(name)}")
    labels = lane_names(found) if labels is None else check_names(labels, len(found), "lane")
    curves = [np.asarray(found.trace[name][i, : found.steps[i]], float) for i in range(len(found))]
    order = ranked(found)
    written = [order[k] for k in np.unique(np.linspace(0, len(found) - 1, len(COLORS)).astype(int))]
    with look():
        one = panel(ax)
        fit_scale(one, *curves)
        firsts = [curve[:1] for curve in curves]
        keep_in_view(one, np.concatenate([*firsts, curves[order[0]]]), np.concatenate(curves))
        for lane in [lane for lane in order if lane not in written]:
            one.plot(curves[lane], color=FAINT, linewidth=0.8, marker=mark(curves[lane]), markersize=3)
            _cross(one, found, lane, curves[lane], FAINT)
        for place, lane in enumerate(written):
            best, broke = lane == found.best, found.status[lane].code is Code.DIVERGED
            label = f"{labels[lane]}{' (best)' if best else ' (diverged)' if broke else ''}"
            style = dict(linewidth=3.2, zorder=3) if best else dict(linewidth=1.6, zorder=2)
            draw_line(one, np.arange(len(curves[lane])), curves[lane], place, label=label, **style)
            _cross(one, found, lane, curves[lane], COLORS[place])
        one.set_xlabel("step")
        one.set_ylabel(title(name), parse_math=False)
        one.legend()
    return one


def _cross(ax: Axes, found: Sweep, lane: int, curve: np.ndarray, color: str) -> None:
    if found.status[lane].code is Code.DIVERGED and len(curve):
        low, high = ax.get_ylim()
        end = np.clip(curve[-1:], low, high)  # at the edge, if it ended outside
        ax.plot([len(curve) - 1], end, "X", color=color, markersize=9, clip_on=False)
