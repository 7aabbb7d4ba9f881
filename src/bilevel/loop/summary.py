"""Summaries of a result or a sweep: how it ended, its numbers, and the order and names of its lanes."""

from collections.abc import Sequence
from functools import partial
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bilevel.loop.columns import NAMES, numbers_in, title
from bilevel.loop.trace import STEP
from bilevel.words import listed, one_line, printable, shapes

if TYPE_CHECKING:
    from bilevel.loop.result import Result
    from bilevel.loop.sweep import Sweep

WIDTH = 88  # of a line
MOST = 8  # metrics, lanes that are listed
WITHIN = {"rule", "step_size", "numbers"}  # fields of a solver with the number that the user gave
Rows = Sequence[tuple[str, str]]


def as_text(headline: str, rows: Rows) -> str:
    width = max(len(name) for name, _ in rows)
    wrapped = partial(fill, width=WIDTH, subsequent_indent=" " * (width + 4), break_long_words=False)
    lines = [wrapped(text, initial_indent=f"  {name:{width}}  ") for name, text in rows]
    return printable("\n".join([headline, *lines]))


def as_html(headline: str, rows: Rows) -> str:
    """Return the same as a table for a notebook."""
    cell = '<td style="text-align:left;vertical-align:top">'
    lines = "".join(f"<tr>{cell}{escape(name)}</td>{cell}{escape(text)}</td></tr>" for name, text in rows)
    return f"<div><strong>{escape(headline)}</strong><table>{lines}</table></div>"


def of_result(result: "Result") -> tuple[str, Rows]:
    trace = result.trace if result.steps else {}
    columns = dict(list(numbers_in(trace).items())[: MOST + len(NAMES)])
    rows = [(title(name), course_of(name, column)) for name, column in columns.items()]
    others = [name for name in trace if name not in {STEP, *columns}]
    rows += [("also traced", listed(others))] if others else []
    rows += _probed(result)
    rows += [("x", shapes(result.x)), ("y", shapes(result.y))]
    if result.halvings:
        rows.append(("step sizes", f"cut at step {', '.join(str(step) for step, *_ in result.halvings)}"))
    return f"{ending(result)}, {result.seconds:.1f} s", [*rows, ("status", result.status.message)]


def _probed(result: "Result") -> Rows:
    """Return the courses of the first numbers of probes, and the names of the others."""
    columns = {name: column[~np.isnan(column)] for name, column in numbers_in(result.probes).items()}
    shown = [name for name, column in columns.items() if column.size and name not in result.trace][:MOST]
    others = [name for name in result.probes if name not in {STEP, *shown}]
    rows = [(one_line(name), course_of(name, columns[name])) for name in shown]
    return rows + ([("also probed" if shown else "probed", listed(others))] if others else [])


def of_sweep(found: "Sweep") -> tuple[str, Rows]:
    names, order = lane_names(found), ranked(found)
    diverged = sum(status.code == "diverged" for status in found.status)
    headline = f"Sweep of {len(found):,} lanes, {diverged:,} diverged, {found.seconds:.1f} s"
    score = lambda i: (
        f"{one_line(found.metric)} {found.scores[i]:.6g}" if np.isfinite(found.scores[i]) else "no score"
    )
    rows = [
        (("best: " if i == found.best else "") + names[i], f"{score(i)}, {ending(found, i)}")
        for i in order[:MOST]
    ]
    if (more := len(order) - MOST) > 0:
        last = order[-1]
        rows.append(("…", f"{more:,} more lanes, the last of them {names[last]}: {score(last)}"))
    return headline, rows


def ranked(found: "Sweep") -> list[int]:
    """Return the lanes from the best to the worst. Those without a score are last."""
    scores = np.asarray(found.scores, float)
    larger_is_better = found.best is not None and scores[found.best] > np.nanmin(scores)
    order = -scores if larger_is_better else scores
    return sorted(range(len(found)), key=lambda i: (i != found.best, not np.isfinite(order[i]), order[i], i))


def lane_names(found: "Sweep") -> list[str]:
    """Return the numbers in which the lanes' solvers differ, such as step sizes, else the lanes' numbers."""
    leaves = [jax.tree_util.tree_leaves_with_path(solver) for solver in found.solvers]
    differences: list[list[str]] = [[] for _ in leaves]
    for same in zip(*leaves, strict=True):
        values = [np.asarray(leaf) for _, leaf in same]
        if all(value.ndim == 0 for value in values) and len({float(value) for value in values}) > 1:
            parts = jax.tree_util.keystr(same[0][0], simple=True, separator=".").split(".")
            what = ".".join(part for part in parts if part not in WITHIN) or "step_size"
            for names, value in zip(differences, values, strict=True):
                names.append(f"{what} {float(value):.4g}")
    named = [", ".join(names) for names in differences]
    alike = len(set(named)) < len(named) or not all(named)
    return [f"lane {i} {name}".strip() for i, name in enumerate(named)] if alike else named


def ending(result: Any, lane: int | None = None) -> str:
    """Return how a run, or a lane of a sweep, ended and when."""
    status, steps = (
        (result.status, result.steps) if lane is None else (result.status[lane], int(result.steps[lane]))
    )
    return f"{status.code} after {steps:,} step{'s' * (steps != 1)}"


def course_of(name: str, column: Any) -> str:
    """Return the first and the last value, and the extremes beyond both."""
    values = np.asarray(column, float)
    text = f"{values[0]:.4g}" + (f" → {values[-1]:.4g}" if len(values) > 1 else "")
    finite = values[np.isfinite(values)]
    ends = values[[0, -1]]
    if finite.size and finite.min() < ends.min():
        text += f", lowest {finite.min():.4g}"
    if finite.size and finite.max() > ends.max() and name not in NAMES:
        text += f", highest {finite.max():.4g}"
    bad = values.size - finite.size
    return text + (f", not finite in {bad:,} of {values.size:,} rows" if bad else "")
