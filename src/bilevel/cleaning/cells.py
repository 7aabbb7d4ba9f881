"""Readers of single cells. They return a number, NaN for a missing cell, and None for anything else."""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bilevel.cleaning.table import is_missing

DAY = 86_400.0  # seconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXPONENT = r"(?:[eE][+-]?\d+)?"
POINT = re.compile(rf"[+-]?(?:\d{{1,3}}(?: \d{{3}})+|\d+)(?:\.\d+)?{EXPONENT}")
COMMAS_GROUP = re.compile(rf"[+-]?(?:[1-9]\d{{0,2}}(?:,\d{{3}})+|\d+)(?:\.\d+)?{EXPONENT}")
COMMA_POINT = re.compile(rf"[+-]?(?:\d{{1,3}}(?:[. ]\d{{3}})+|\d+)(?:,\d+)?{EXPONENT}")
DOTS_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")
CURRENCY = re.compile("[$€£¥]")
GAP = re.compile(r"[\s’']")  # between thousands, including no-break spaces
CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
YEAR_FIRST = re.compile(r"(?P<year>\d{4})[/.](?P<month>\d{1,2})[/.](?P<day>\d{1,2})(?:[ T](?P<time>.+))?")
YEAR_LAST = (
    r"(?P<{}>\d{{1,2}})(?P<sign>[./-])(?P<{}>\d{{1,2}})(?P=sign)(?P<year>\d{{4}})(?:[ T](?P<time>.+))?"
)

Reader = Callable[[str], float | None]


def _reader(parse: Callable[..., float | None], *form: Any) -> Reader:
    return lambda cell: math.nan if is_missing(cell) else parse(*form, cell.strip())


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
    if found := CLOCK.fullmatch(text):
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return (3600 * hours + 60 * minutes + seconds) / DAY
    return None


def _days(form: re.Pattern[str], text: str) -> float | None:
    """Return the days since 1970 of a date in this form, for `YEAR_FIRST` also in ISO 8601; UTC without a time zone."""
    if found := form.fullmatch(text):
        text = f"{found['year']}-{found['month']:0>2}-{found['day']:0>2}"
        text += f"T{found['time']}" if found["time"] else ""
    elif form is not YEAR_FIRST:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH).total_seconds() / DAY


# Python's decimal notation without underscores, also $ 5, 5 €, 5 %, 1 234.5 and inf.
number = _reader(_decimal)
number_with_thousands = _reader(_grouped, COMMAS_GROUP, ",")  # 1,234.5 and 1,234
number_with_comma = _reader(_grouped, COMMA_POINT, ".")  # as in most of Europe: 1.234,5 and 1234,5
date = _reader(_days, YEAR_FIRST)  # ISO 8601 or 2025/12/31, with or without a time of day
day_first = _reader(
    _days, re.compile(YEAR_LAST.format("day", "month"))
)  # 31.12.2025, 31/12/2025 or 31-12-2025
month_first = _reader(_days, re.compile(YEAR_LAST.format("month", "day")))  # 12/31/2025

DOTTED, DECIMAL_COMMA = "number, dots between thousands", "number, decimal comma"
READERS: dict[str, Reader] = {  # in the order to try; the words after the comma are for the report
    DOTTED: number_with_comma,
    "number": number,
    "number, commas between thousands": number_with_thousands,
    DECIMAL_COMMA: number_with_comma,
    "date": date,
    "date, day first": day_first,
    "date, month first": month_first,
    "time": _reader(_share_of_day),  # 10:30 or 10:30:15, as a share of the day
}
