"""Summaries of a result or a sweep: how it ended, and the first and last values of its numbers."""

from collections.abc import Sequence
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from bilevel.loop.columns import NAMES, numbers_in, title
from bilevel.loop.ranking import lane_names, ranked
from bilevel.loop.trace import STEP
from bilevel.words import listed, one_line, printable, shapes

if TYPE_CHECKING:
    from bilevel.loop.result import Result
    from bilevel.loop.sweep import Sweep

WIDTH = 88  # of a line
MOST = 8  # metrics, lanes that are listed
Rows = Sequence[tuple[str, str]]


def as_text(headline: str, rows: Rows) -> str:
    width = max(len(name) for name, _ in rows)
    indent = " " * (width + 4)
    lines = (
        fill(
            text,
            WIDTH,
            initial_indent=f"  {name:{width}}  ",
            subsequent_indent=indent,
            break_long_words=False,
        )
        for name, text in rows
    )
    return printable("\n".join([headline, *lines]))


def as_html(headline: str, rows: Rows) -> str:
    """Return the same as a table for a notebook."""
    cell = '<td style="text-align:left;vertical-align:top">'
    lines = "".join(f"<tr>{cell}{escape(name)}</td>{cell}{escape(text)}</td></tr>" for name, text in rows)
    return f"<div><strong>{escape(headline)}</strong><table>{lines}</table></div>"


def of_result(result: "Result") -> tuple[str, Rows]:
    columns = numbers_in(result.trace) if result.steps else {}
    rows = [
        (title(name), course_of(name, column)) for name, column in list(columns.items())[: MOST + len(NAMES)]
    ]
    listed_above = {STEP, *list(columns)[: len(rows)]}
    others = [name for name in result.trace if name not in listed_above]
    rows += [("also traced", listed(others))] if others and result.steps else []
    rows += [("probed", listed(name for name in result.probes if name != "step"))] if result.probes else []
    rows += [("x", shapes(result.x)), ("y", shapes(result.y))]
    if result.halvings:
        rows.append(("step sizes", f"cut at step {', '.join(str(step) for step, *_ in result.halvings)}"))
    return f"{ending(result)}, {result.seconds:.1f} s", [*rows, ("status", result.status.message)]


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
    if len(order) > MOST:
        rows.append(
            (
                "…",
                f"{len(order) - MOST:,} more lanes, the last of them {names[order[-1]]}: {score(order[-1])}",
            )
        )
    return headline, rows


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
