"""A result in a few lines: how the run ended, where its numbers began and ended, and what it found."""

from html import escape
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from bilevel.loop.result import Result

FIRST = {
    "outer_value": "outer value",
    "hypergradient_norm": "‖hypergradient‖",
}  # what is told before other metrics
MOST = 8  # arrays of x or y that are listed


def as_text(result: "Result") -> str:
    rows = _rows(result)
    width = max(len(name) for name, _ in rows)
    return "\n".join([_headline(result), *(f"  {name:{width}}  {text}" for name, text in rows)])


def as_html(result: "Result") -> str:
    """For a notebook: the same in a table."""
    cell = '<td style="text-align:left;vertical-align:top">'
    lines = "".join(
        f"<tr>{cell}{escape(name)}</td>{cell}{escape(text)}</td></tr>" for name, text in _rows(result)
    )
    return f"<div><strong>{escape(_headline(result))}</strong><table>{lines}</table></div>"


def _headline(result: "Result") -> str:
    return f"{str(result.status.code).capitalize()} after {result.steps:,} steps, {result.seconds:.1f} s"


def _rows(result: "Result") -> list[tuple[str, str]]:
    numbers = {name: column for name, column in result.trace.items() if np.ndim(column) == 1 and len(column)}
    numbers.pop("step", None)
    names = [*(name for name in FIRST if name in numbers), *(name for name in numbers if name not in FIRST)]
    rows = [(FIRST.get(name, name.replace("_", " ")), _course(numbers[name])) for name in names]
    rows += [("x", _shape(result.x)), ("y", _shape(result.y))]
    if result.halvings:
        at = ", ".join(str(step) for step, *_ in result.halvings)
        rows.append(("step sizes", f"cut at step {at}"))
    return [*rows, ("status", result.status.message)]


def _course(column: Any) -> str:
    """From where to where; and the lowest, where that is not the end."""
    values = np.asarray(column, float)
    text = f"{values[0]:.4g} → {values[-1]:.4g}"
    lowest = np.min(values[np.isfinite(values)], initial=np.inf)
    return text + (f", lowest {lowest:.4g}" if lowest < min(values[0], values[-1]) else "")


def _shape(tree: Any) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    each = [
        f"{jax.tree_util.keystr(path, simple=True, separator='.')} {leaf.dtype}{list(leaf.shape)}".strip()
        for path, leaf in leaves
    ]
    total = sum(int(np.prod(leaf.shape)) for _, leaf in leaves)
    more = f", … {len(each) - MOST} more arrays" if len(each) > MOST else ""
    numbers = f"{total:,} numbers: " if len(each) > 1 else ""
    return numbers + ", ".join(each[:MOST]) + more
