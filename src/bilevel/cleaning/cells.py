"""Readers of single cells. They return a number, NaN for a missing cell, and None for anything else."""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from bilevel.cleaning.table import is_missing

DAY = 86_400.0  # seconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXPONENT = r"(?:[eE][+-]?\d+)?"
POINT = re.compile(rf"[+-]?(?:\d{{1,3}}(?: \d{{3}})+|\d+)(?:\.\d+)?{EXPONENT}")
COMMAS_GROUP = re.compile(rf"[+-]?(?:[1-9]\d{{0,2}}(?:,\d{{3}})+|\d+)(?:\.\d+)?{EXPONENT}")
DECIMAL_COMMA = re.compile(rf"[+-]?(?:\d{{1,3}}(?:[. ]\d{{3}})+|\d+)(?:,\d+)?{EXPONENT}")
DOTS_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")
CURRENCY = re.compile("[$€£¥]")
GAP = re.compile(r"[\s’']")  # between thousands, including no-break spaces
CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
YEAR_FIRST = re.compile(r"(\d{4})[/.](\d{1,2})[/.](\d{1,2})(?:[ T](.+))?")
YEAR_LAST = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:[ T](.+))?")

Reader = Callable[[str], float | None]


def _reader(parse: Reader) -> Reader:
    return lambda cell: math.nan if is_missing(cell) else parse(cell.strip())


def _decimal(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return _grouped(POINT, " ", text)


def _grouped(form: re.Pattern[str], group: str, text: str) -> float | None:
    """Return the number without its unit and group separators, if it has this form."""
    text = GAP.sub(" ", CURRENCY.sub("", text.removesuffix("%"))).strip()
    if not form.fullmatch(text):
        return None
    return float(text.replace(group, "").replace(" ", "").replace(",", "."))


def _share_of_day(text: str) -> float | None:
    found = CLOCK.fullmatch(text)
    return sum(int(found[i] or 0) * size for i, size in ((1, 3600), (2, 60), (3, 1))) / DAY if found else None


def _iso_date(text: str) -> float | None:
    found = YEAR_FIRST.fullmatch(text)
    return _days(_iso(found[1], found[2], found[3], found[4]) if found else text)


def _date(month: int, day: int, text: str) -> float | None:
    found = YEAR_LAST.fullmatch(text)
    return _days(_iso(found[4], found[month], found[day], found[5])) if found else None


def _iso(year: str, month: str, day: str, time: str | None) -> str:
    return f"{year}-{month:0>2}-{day:0>2}" + (f"T{time}" if time else "")


def _days(text: str) -> float | None:
    """Return the days since 1970; UTC without a time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH).total_seconds() / DAY


number = _reader(
    _decimal
)  # Python's decimal notation without underscores, also $ 5, 5 €, 5 %, 1 234.5 and inf
number_with_thousands = _reader(partial(_grouped, COMMAS_GROUP, ","))  # 1,234.5 and 1,234
number_with_comma = _reader(partial(_grouped, DECIMAL_COMMA, "."))  # as in most of Europe: 1.234,5 and 1234,5
time_of_day = _reader(_share_of_day)  # 10:30 or 10:30:15, as a share of the day
date = _reader(_iso_date)  # ISO 8601 or 2025/12/31, with or without a time of day
day_first = _reader(partial(_date, 3, 1))  # 31.12.2025, 31/12/2025 or 31-12-2025
month_first = _reader(partial(_date, 1, 3))  # 12/31/2025

DOTTED, DECIMAL_COMMA = "number, dots between thousands", "number, decimal comma"
READERS: dict[str, Reader] = {  # in the order to try; the words after the comma are for the report
    DOTTED: number_with_comma,
    "number": number,
    "number, commas between thousands": number_with_thousands,
    DECIMAL_COMMA: number_with_comma,
    "date": date,
    "date, day first": day_first,
    "date, month first": month_first,
    "time": time_of_day,
}
