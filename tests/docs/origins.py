"""Where the figures of a sentence come from: what is computed is compared with what is shown.

An origin is a value for every number of its fragment, in their order, or a function that computes them. `AtMost`,
`AtLeast` and `About` are for sentences that say so. A test that computes the number already is named by `ByTest`;
what nothing here can compute is `Told`, with the reason.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from measured import MEASURED, tables
from pages import ROOT
from sentences import Figure


@dataclass(frozen=True)
class AtMost:
    """What is shown is a bound from above."""

    value: float


@dataclass(frozen=True)
class AtLeast:
    value: float


@dataclass(frozen=True)
class About:
    """To a tenth."""

    value: float


@dataclass(frozen=True)
class ByTest:
    """A test file that names the page and has the numbers."""

    file: str


@dataclass(frozen=True)
class Told:
    """Of somebody else's, or of a choice that was made once."""

    why: str


Value = float | AtMost | AtLeast | About
Values = Value | tuple[Value, ...]
Origin = Values | Callable[[], Values] | ByTest | Told
Claims = dict[str, dict[str, Origin]]  # by page, by fragment of it


def agrees(figure: Figure, value: Value) -> bool:
    """Whether this is what is shown, to the digits shown."""
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
    """The one that a cell begins with."""
    found = NUMBER.match(cell)
    assert found, f"{cell!r} does not begin with a number"
    return (-1 if cell.strip(" *")[0] in "-−" else 1) * float(found[1].replace(",", ""))


def rows(name: str, table: int = 0) -> list[dict[str, str]]:
    """Of a table in docs/measured/, or of the page of this name."""
    file = ROOT / name if name.endswith(".md") else MEASURED / f"{name}.md"
    found = tables(file.read_text())[table]
    return [dict(zip(found.head, row, strict=True)) for row in found.rows]


def cell(name: str, row: str, column: str, table: int = 0) -> float:
    """The number in the row that is called so, or begins so."""
    named = {next(iter(each.values())): each for each in rows(name, table)}
    (found,) = [named[row]] if row in named else [named[each] for each in named if each.startswith(row)]
    return number(found[column])


def column(name: str, head: str, **where: str) -> list[float]:
    """The numbers below a head, of the rows with these cells."""
    return [number(row[head]) for row in rows(name) if where.items() <= row.items()]


def written(file: str, pattern: str) -> Values:
    """Numbers that stand in a file, at the groups of a pattern, which occurs there once."""
    found = list(re.finditer(pattern, (ROOT / file).read_text()))
    assert len(found) == 1, f"{file} has {pattern} {len(found)} times"
    values = tuple(map(float, found[0].groups()))
    return values[0] if len(values) == 1 else values
