"""Histograms of the weights of examples, together or by group."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bilevel.loop.result import Result
from bilevel.plot.numbers import HUGE, leaves, transformed
from bilevel.plot.style import COLORS, look, panel
from bilevel.words import shown

BINS = 40


def weights(
    values: Any, groups: Any = None, *, transform: Callable[[Any], Any] | None = None, ax: Any = None
) -> Axes:
    """Plot a histogram of weights, or one for each group.

        bl.plot.weights(result, np.where(flipped, "wrong label", "right label"), transform=jax.nn.sigmoid)

    Args:
        values: one weight per example, or a `bl.Result` with the weights as x.
        groups: the group of each example: words, numbers, or booleans; at most seven groups.
        transform: a function from x to weights, such as `jax.nn.sigmoid`; if x has several arrays, it selects one:
            `lambda x: jax.nn.sigmoid(x["weights"])`.
        ax: matplotlib axes to draw into; default: a new figure.
    """
    flat = _flat(values, transform)
    kinds = np.zeros(flat.size, int) if groups is None else _kinds(groups)
    if kinds.size != flat.size:
        what = f"groups must be words or numbers, one for each of {flat.size} weights"
        raise ValueError(f'{what}, not {shown(groups)}: pass e.g. np.where(flipped, "wrong", "right")')
    names = np.unique(kinds)
    if len(names) > len(COLORS):
        limit = f"of which {len(COLORS)} can be told apart"
        raise ValueError(f"groups has {len(names)} different ones, {limit}: join some")
    edges = _edges(flat)
    with look():
        one = panel(ax)
        for i, name in enumerate(names):
            mine = flat[kinds == name]
            label = None if groups is None else f"{name} ({mine.size:,})"
            one.hist(mine, edges.tolist(), color=COLORS[i], alpha=0.6, label=label)
        one.set(xlabel="weight", ylabel="examples")
        one.yaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
        if groups is not None:
            one.legend()
    return one


def _edges(flat: np.ndarray) -> np.ndarray:
    """Return the edges of the bins, with room around weights that differ only by rounding."""
    low, high = flat.min(), flat.max()
    if max(-low, high) > HUGE:
        fix = "which is too far to draw: leave some out"
        raise ValueError(f"values reach from {low:.3g} to {high:.3g}, {fix}")
    rounding = 1e-9 * max(-low, high)
    room = 0.0 if high - low > rounding else max(rounding, 0.5)
    return np.linspace(low - room, high + room, BINS + 1)


def _flat(values: Any, transform: Any) -> np.ndarray:
    values = values.x if isinstance(values, Result) else values
    example = "jax.nn.sigmoid"
    if isinstance(values, dict) and values:
        example = f"lambda x: {example}(x[{min(values, key=str)!r}])"
    values = transformed(transform, values, "x", example)
    given = leaves(values)
    if len(given) != 1 or not given[0][1].ndim or not given[0][1].size:
        raise ValueError(
            f"{'values' if transform is None else 'what transform returns'} must be one array with a weight per "
            f"example, not {shown(values)}: pass e.g. result.x, or one of its arrays"
        )
    flat = given[0][1].ravel()
    if bad := int((~np.isfinite(flat)).sum()):
        raise ValueError(f"values has {bad} NaN or infinite weights of {flat.size}: leave them out")
    return flat


def _kinds(groups: Any) -> np.ndarray:
    """Return the groups as one vector; none if they are neither words nor numbers."""
    try:
        found = np.ravel(np.asarray(groups))
    except Exception:  # ragged, deleted or traced
        return np.empty(0)
    return found if found.dtype.kind in "biufUS" else np.empty(0)
