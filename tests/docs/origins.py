"""Origins of the figures of a sentence: an imported constant, a cell of a measured table, or arithmetic.

An origin is a value for every number of its fragment, in their order, or a function that computes them. `AtMost`,
`AtLeast` and `About` are for sentences that use these words. A number without such an origin stays out of sentences.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from measured import MEASURED, tables
from pages import ROOT
from sentences import Figure


@dataclass(frozen=True)
class AtMost:
    """The figure is a bound from above."""

    value: float


@dataclass(frozen=True)
class AtLeast:
    """The figure is a bound from below."""

    value: float


@dataclass(frozen=True)
class About:
    """The figure is right to a tenth."""

    value: float


Value = float | AtMost | AtLeast | About
Values = Value | tuple[Value, ...]
Origin = Values | Callable[[], Values]
Claims = dict[str, dict[str, Origin]]  # by page, then by fragment of its text


def agrees(figure: Figure, value: Value) -> bool:
    """Return whether a figure shows this value, to the digits shown."""
    match value:
        case AtMost(bound):
            return bound <= figure.value * (1 + 1e-9)
        case AtLeast(bound):
            return bound >= figure.value * (1 - 1e-9)
        case About(center):
            return abs(figure.value - center) <= 0.1 * abs(center)
        case number:
            return abs(figure.value - number) <= figure.precision * (1 + 1e-9)


NUMBER = re.compile(r"[-−+<>≤≥≈~÷* ]*(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)")


def number(cell: str) -> float:
    """Return the number that a cell begins with."""
    found = NUMBER.match(cell)
    assert found, f"{cell!r} does not begin with a number"
    return (-1 if cell.strip(" *")[0] in "-−" else 1) * float(found[1].replace(",", ""))


def rows(name: str, table: int = 0) -> list[dict[str, str]]:
    """Return the rows of a table in docs/measured/, or in the page of this name."""
    file = ROOT / name if name.endswith(".md") else MEASURED / f"{name}.md"
    found = tables(file.read_text())[table]
    return [dict(zip(found.head, row, strict=True)) for row in found.rows]


def cell(name: str, row: str, column: str, table: int = 0) -> float:
    """Return the number in the row whose first cell is `row`, or begins with it."""
    named = {next(iter(each.values())): each for each in rows(name, table)}
    (found,) = [named[row]] if row in named else [named[each] for each in named if each.startswith(row)]
    return number(found[column])


def column(name: str, head: str, **where: str) -> list[float]:
    """Return the numbers below a head, of the rows with these cells."""
    return [number(row[head]) for row in rows(name) if where.items() <= row.items()]
