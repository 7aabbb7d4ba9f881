"""Plots along the steps: a trace, recorded hyperparameters, and the lanes of a sweep."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes

from bilevel.checks import check_kind, check_text
from bilevel.loop.columns import numbers_in, title
from bilevel.loop.result import Result
from bilevel.loop.status import Code
from bilevel.loop.summary import ending, lane_names, ranked
from bilevel.loop.sweep import Sweep
from bilevel.loop.trace import STEP
from bilevel.plot.numbers import HUGE, check_names, leaves, transformed
from bilevel.plot.style import (
    BROKEN,
    COLORS,
    FAINT,
    draw_line,
    fit_scale,
    keep_in_view,
    look,
    mark,
    panel,
    panels,
)
from bilevel.words import listed, shown

PANELS = 6  # default number of panels of a trace with many metrics
BANDS = (0, 10, 25, 50, 75, 90, 100)  # percentiles
CUT_SHORT = {Code.DIVERGED: "X", Code.FAILED: "X", Code.INTERRUPTED: "d"}  # marks at the end of the lines


def trace(
    result: Result, names: str | Sequence[str] | None = None, *, label: str | None = None, ax: Any = None
) -> np.ndarray:
    """Plot columns of the trace along the steps, each in a separate panel, logarithmic if it shrinks a lot.

    A cross marks the end of a run that diverged or failed, and a diamond the end of an interrupted run.
    Dotted lines mark halved step sizes. To compare runs, pass the axes again:

        axes = bl.plot.trace(one, label="one")
        bl.plot.trace(other, label="other", ax=axes)

    Args:
        result: a result of `bl.run`, or a lane of a sweep, `found[0]`.
        names: columns of `result.trace` with a number per step. Default: outer value, norm of the hypergradient,
            residuals and metrics, at most six.
        label: the name of the run in the legend.
        ax: matplotlib axes to draw into, one for each name; default: a new figure.

    Returns:
        An array of the axes, one for each name.
    """
    steps, columns = steps_of(result), numbers_in(result.trace)
    names = _chosen(names, columns)
    if label is not None:
        check_text(label, "label", '"first try"')
    with look():
        drawn = panels(ax, len(names))
        for one, name in zip(drawn, names, strict=True):
            place, values = len(one.get_lines()), np.asarray(columns[name], float)
            fit_scale(one, values)
            keep_in_view(one, np.clip(values, -HUGE, HUGE), values)
            draw_line(one, steps, values, place, label=label)
            if end := CUT_SHORT.get(result.status.code):
                one.plot(steps[-1:], values[-1:], end, color=BROKEN, markersize=9, clip_on=False)
            for from_step, *_ in result.halvings:
                one.axvline(from_step, color=BROKEN, linestyle=":", linewidth=1)
            one.set_ylabel(title(name), parse_math=False)
        drawn[-1].set_xlabel("step")
        if label is None:
            drawn[0].set_title(ending(result), loc="left")
        else:
            drawn[0].legend()
    return np.array(drawn, object)


def hyperparameters(
    values: Any,
    name: str = "x",
    *,
    transform: Callable[[Any], Any] | None = None,
    labels: Sequence[str] | None = None,
    ax: Any = None,
) -> Axes:
    """Plot the entries of x, or of another recorded value, along the run.

        result = bl.run(solver, x0, y0, steps=500, record=lambda state, info: {"x": state.x})
        bl.plot.hyperparameters(result, transform=jnp.exp)

    Up to seven entries are lines, and so are entries with labels. More entries without labels are bands
    between the percentiles 0, 10, 25, 50, 75, 90 and 100.

    Args:
        values: the result of `bl.run` with `record=`, or a lane of a sweep; or an array, or a tree of arrays, with one
            row per step.
        name: the column of the trace, and the label of the axis.
        transform: a function for the values before they are drawn, such as `jnp.exp` for logarithms.
        labels: names of the entries.
        ax: matplotlib axes to draw into; default: a new figure.
    """
    check_text(name, "name", '"x"')
    if isinstance(values, Result):
        steps = steps_of(values)
        if name not in values.trace:
            fix = 'record it, by bl.run(..., record=lambda state, info: {"x": state.x})'
            raise ValueError(
                f"name={shown(name)} is no column of the trace, which has {listed(values.trace)}: {fix}"
            )
        column = values.trace[name]
    else:
        steps, column = None, values
    column = transformed(transform, column, "what was recorded", "jnp.exp")
    found = _entries(column, "values" if transform is None else "what transform returns", steps)
    steps = np.arange(len(next(iter(found.values())))) if steps is None else steps
    names = list(found) if labels is None else check_names(labels, len(found), "entry")
    with look():
        one = panel(ax)
        fit_scale(one, *found.values())
        if len(found) > len(COLORS) and labels is None:
            _bands(one, steps, np.stack(list(found.values())))
        else:
            before = len(one.get_lines())
            for i, (label, entry) in enumerate(zip(names, found.values(), strict=True)):
                draw_line(one, steps, entry, before + i, label=label or name)
            if len(found) > 1 or labels is not None:
                one.legend(ncols=1 + len(found) // 10)
        one.set(xlabel="step", ylabel=name)
    return one


def steps_of(result: Any) -> np.ndarray:
    fix = "pass result = bl.run(...), or a lane of a sweep, found[0]"
    check_kind(result, Result, "result", "what bl.run returns", fix)
    if not result.trace or not result.steps:
        raise ValueError(f"result has a run without a step ({result.status.code}): run it longer")
    rows = len(jax.tree.leaves(result.trace)[0])
    thinned = result.thin is not None and STEP in result.trace
    return np.asarray(result.trace[STEP]) if thinned else np.arange(rows)


def _chosen(names: Any, columns: dict[str, Any]) -> list[str]:
    if names is None:
        return list(columns)[:PANELS]
    names = [names] if isinstance(names, str) else names
    known = lambda name: isinstance(name, str) and name in columns
    if not isinstance(names, list | tuple) or not names or not all(map(known, names)):
        some = f"some of {listed(columns)}, the numbers in the trace"
        raise ValueError(f"names must be {some}, not {shown(names)}")
    return list(names)


def _entries(tree: Any, name: str, steps: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return every number of the tree along the steps, by its path."""
    given = leaves(tree)
    rows = {len(steps)} if steps is not None else {len(numbers) for _, numbers in given if numbers.ndim}
    fits = len(rows) == 1 and 0 not in rows and all(numbers.shape[:1] == (*rows,) for _, numbers in given)
    if not fits or not any(numbers.size for _, numbers in given):
        what = f"{name} must be a bl.Result, or arrays of numbers with one row per step"
        raise ValueError(f'{what}, not {shown(tree)}: pass e.g. result.trace["x"]')
    place = lambda i: str([int(k) for k in i]) if i else ""
    inside = lambda numbers: np.ndindex(numbers.shape[1:])
    return {at + place(i): numbers[(slice(None), *i)] for at, numbers in given for i in inside(numbers)}


def _bands(ax: Axes, steps: np.ndarray, values: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):  # infinite values
        cuts = np.percentile(values, BANDS, axis=0)
    half = len(BANDS) // 2
    for i in range(half):
        style: Any = dict(color=COLORS[0], alpha=0.12 + 0.1 * i, linewidth=0)
        label = f"{BANDS[i]} to {BANDS[-1 - i]} % of {len(values):,}"
        ax.fill_between(steps, cuts[i], cuts[-1 - i], label=label, **style)
    draw_line(ax, steps, cuts[half], 0, label="median")
    ax.legend()


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
