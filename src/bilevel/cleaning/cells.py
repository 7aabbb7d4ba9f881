"""What a cell says: a number, a point in time, or nothing. `None` where it is something else, NaN where it is missing.

A cell is read on its own; what a whole column is, is decided in `encoding.py`.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime

from bilevel.cleaning.table import is_missing

DAY = 86_400.0  # seconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TWO_NUMBERS = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:[ T](.+))?")
YEAR_FIRST = re.compile(r"(\d{4})[/.](\d{1,2})[/.](\d{1,2})(?:[ T](.+))?")

Reader = Callable[[str], float | None]


def number(cell: str) -> float | None:
    """Python's decimal notation, without underscores; an infinity is a number."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return math.nan if is_missing(cell) else None


def number_with_comma(cell: str) -> float | None:
    """As in most of Europe: 1.234,5 and 1234,5."""
    return number(cell.replace(".", "").replace(",", "."))


def date(cell: str) -> float | None:
    """Days since 1970 of an ISO 8601 date, with or without a time of day; without a time zone it is UTC."""
    if is_missing(cell):
        return math.nan
    text = cell.strip()
    if found := YEAR_FIRST.fullmatch(text):
        text = _iso(found[1], found[2], found[3], found[4])
    return _days(text)


def day_first(cell: str) -> float | None:
    """31.12.2025, 31/12/2025 or 31-12-2025."""
    return _days_of(cell, lambda found: _iso(found[4], found[3], found[1], found[5]))


def month_first(cell: str) -> float | None:
    """12/31/2025."""
    return _days_of(cell, lambda found: _iso(found[4], found[1], found[3], found[5]))


def _days_of(cell: str, iso: Callable[[re.Match[str]], str]) -> float | None:
    if is_missing(cell):
        return math.nan
    found = TWO_NUMBERS.fullmatch(cell.strip())
    return _days(iso(found)) if found else None


def _iso(year: str, month: str, day: str, time: str | None) -> str:
    return f"{year}-{month:0>2}-{day:0>2}" + (f"T{time}" if time else "")


def _days(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH).total_seconds() / DAY
