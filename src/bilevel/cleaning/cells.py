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
EXPONENT = r"(?:[eE][+-]?\d+)?"
POINT = re.compile(rf"[+-]?(?:\d{{1,3}}(?: \d{{3}})+|\d+)(?:\.\d+)?{EXPONENT}")
COMMAS_GROUP = re.compile(rf"[+-]?(?:[1-9]\d{{0,2}}(?:,\d{{3}})+|\d+)(?:\.\d+)?{EXPONENT}")
DECIMAL_COMMA = re.compile(rf"[+-]?(?:\d{{1,3}}(?:[. ]\d{{3}})+|\d+)(?:,\d+)?{EXPONENT}")
DOTS_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")
CURRENCY = re.compile("[$€£¥]")
GAP = re.compile(r"[\s’']")  # between thousands; among them spaces that do not break
CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
YEAR_FIRST = re.compile(r"(\d{4})[/.](\d{1,2})[/.](\d{1,2})(?:[ T](.+))?")

Reader = Callable[[str], float | None]


def number(cell: str) -> float | None:
    """Python's decimal notation, without underscores; an infinity is a number. $ 5, 5 €, 5 % and 1 234.5 are, too."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return math.nan if is_missing(cell) else _matched(POINT, cell, " ")


def number_with_thousands(cell: str) -> float | None:
    """1,234.5 and 1,234."""
    return math.nan if is_missing(cell) else _matched(COMMAS_GROUP, cell, ",")


def number_with_comma(cell: str) -> float | None:
    """As in most of Europe: 1.234,5 and 1234,5."""
    return math.nan if is_missing(cell) else _matched(DECIMAL_COMMA, cell, ".")


def time_of_day(cell: str) -> float | None:
    """10:30 or 10:30:15, as a share of the day."""
    if is_missing(cell):
        return math.nan
    found = CLOCK.fullmatch(cell.strip())
    return sum(int(found[i] or 0) * size for i, size in ((1, 3600), (2, 60), (3, 1))) / DAY if found else None


def _matched(form: re.Pattern[str], cell: str, group: str) -> float | None:
    """The number, if it has this form but for a unit, after its thousands have been joined."""
    text = GAP.sub(" ", CURRENCY.sub("", cell.strip().removesuffix("%"))).strip()
    if not form.fullmatch(text):
        return None
    return float(text.replace(group, "").replace(" ", "").replace(",", "."))


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
