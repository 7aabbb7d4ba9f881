"""Columns of a table as a matrix of numbers: fitted on the data, then applied to the trusted rows.

| column | becomes |
| --- | --- |
| number | centered at its median, in standard deviations without the outer 2 %, clipped at ±6 |
| category | one 0/1 column for each frequent value, one for all other values |
| date, time | a number, and sine and cosine of its position in year, week and day, if these vary |
| missing | the median and a 0/1 flag; a separate value in a category |
| constant, identifier, free text, a copy of the label | nothing |

`Column.treatment` describes the result in words, for the report.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from bilevel.cleaning import cells
from bilevel.cleaning.table import Table, TableError, is_missing, listed, rows_in_words
from bilevel.words import shown

LARGEST = 6.0  # standard deviations
HUGE = 1e150  # its square is a float
READABLE = 0.95  # the share of cells that must be numbers or dates; the others count as missing
LEVELS, FEWEST_LEVELS, ALL_LEVELS = 30, 4, 300  # values of a category, and of all categories
RARE = 5  # rows; a value with fewer rows is one of the others
FREE_TEXT = 0.5  # distinct values per row
NAMED_ID = re.compile(r"(.*[\W_])?(id|uuid|guid|key|index)", re.IGNORECASE)
TOLD = 3  # odd cells shown
PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}  # in days

Cells = list[str]
Part = Callable[[np.ndarray], np.ndarray]


class Column(NamedTuple):
    """Treatment of one column of the table."""

    name: str
    kind: str  # number, category, date, time, not used
    treatment: str  # in words
    read: Callable[[Cells], np.ndarray]  # one value for each cell
    parts: tuple[Part, ...] = ()  # columns of the matrix, as functions of these values
    known: frozenset[str] = frozenset()  # the values of a category
    form: str = ""  # the notation of numbers and dates, a key of cells.READERS


class Encoding(NamedTuple):
    """Function from tables with these columns to matrices."""

    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        return sum(len(column.parts) for column in self.columns)

    def __call__(self, table: Table) -> np.ndarray:
        """Return a float32 matrix with the rows of the table."""
        return _matrix([(c, c.read(table.column(c.name))) for c in self.columns if c.parts], len(table))


def fit_encoding(
    table: Table, label: str, leave_out: Collection[str] = (), categories: Collection[str] = ()
) -> tuple[Encoding, np.ndarray]:
    """Return the encoding of every column except the label and `leave_out`, and the encoded table.

    The columns `categories` are categories even if they look like numbers.
    """
    names = [name for name in table.header if name != label and name not in leave_out]
    labels = table.column(label)
    read = {name: _read(table.column(name), name in categories) for name in names}
    count = sum(kind == "category" for kind, _ in read.values())
    most = min(LEVELS, max(FEWEST_LEVELS, ALL_LEVELS // max(count, 1)))
    fitted = [_fit(name, *read[name], table.column(name), labels, most) for name in names]
    encoding = Encoding(tuple(column for column, _ in fitted))
    if not encoding.width:
        why = "; ".join(f"{column.name}: {column.treatment}" for column in encoding.columns)
        why = why or "there is no other column"
        raise TableError(f"{table.path} has no column to judge the labels by ({why})")
    return encoding, _matrix(fitted, len(table))


def telling(encoding: Encoding, matrix: np.ndarray, labels: np.ndarray) -> list[str]:
    """Return the columns in use, ordered by the share of variance that the labels explain (η²)."""
    members = np.eye(int(labels.max()) + 1, dtype=np.float32)[labels]
    counts = np.maximum(members.sum(axis=0), 1)[:, None]
    centered = matrix - matrix.mean(axis=0)
    between = (counts * (members.T @ centered / counts) ** 2).sum(axis=0)
    explained = iter(between / np.maximum((centered**2).sum(axis=0), 1e-12))
    scores = {
        column.name: max(next(explained) for _ in column.parts) for column in encoding.columns if column.parts
    }
    return sorted(scores, key=lambda name: -scores[name])


def _matrix(columns: list[tuple[Column, np.ndarray]], rows: int) -> np.ndarray:
    parts = [(part, values) for column, values in columns for part in column.parts]
    matrix = np.empty((rows, len(parts)), np.float32)
    for i, (part, values) in enumerate(parts):
        matrix[:, i] = part(values)
    return matrix


def _read(column: Cells, forced: bool) -> tuple[str, dict[str, float | None]]:
    """Return the kind (the first reader of nearly all cells, or "category") and the distinct values."""
    counts = Counter(column)
    if all(is_missing(cell) for cell in counts):
        return "empty", {}
    for kind, reader in cells.READERS.items() if not forced else ():
        if kind == cells.DOTTED and not _dots_group(counts):
            continue
        known: dict[str, float | None] = {}
        odd, missing, most_odd = 0, 0, (1 - READABLE) * len(column)
        for cell, count in counts.items():
            known[cell] = value = reader(cell)
            odd += count * (value is None)
            missing += count * (value != value)
            if odd > most_odd:
                break
        else:
            if odd <= (1 - READABLE) * (len(column) - missing):
                return kind, known
    return "category", {}


def _dots_group(counts: Collection[str]) -> bool:
    """Return whether 1.234 is more than a thousand.

    Three digits follow every dot, and numbers without a dot have at most three.
    """
    stripped = [cell.strip() for cell in counts if not is_missing(cell)]
    whole = [cell for cell in stripped if cell.isdigit()]
    dotted = [cell for cell in stripped if "." in cell]
    fits = all(len(cell) <= 3 for cell in whole) and all(map(cells.DOTS_GROUP.fullmatch, dotted))
    return bool(dotted and whole and fits)


def _fit(
    name: str, kind: str, known: dict[str, float | None], column: Cells, labels: Cells, most: int
) -> tuple[Column, np.ndarray]:
    if kind == "empty":
        return _unused(name, "empty in every row")
    if _copies(column, labels):
        return _unused(name, "says the same as the label in every row, so it cannot show wrong labels")
    if kind == "category":
        return _category(name, column, most)
    return _numeric(name, kind, known, column)


def _numeric(name: str, kind: str, read: dict[str, float | None], column: Cells) -> tuple[Column, np.ndarray]:
    values = _values(column, read)
    known = values[~np.isnan(values)]
    if len(known) == len(column) and (known == known[0]).all():
        return _unused(name, f"the same in every row ({shown(column[0])})")
    moment = kind.startswith(("date", "time"))
    if not moment and _counter(name, known, len(column)):
        return _unused(name, "a different whole number in every row: an identifier")
    center, scale = _location(known)
    parts: list[Part] = [partial(_standard, center, scale)]
    words = [_notes(kind, column, read)]
    if moment:
        cycles = _cycles(known)
        parts += [part for cycle in cycles.values() for part in cycle]
        place = f", and its place in the {' and the '.join(cycles)}" if cycles else ""
        words.append(f"as a number{place}")
    if len(known) < len(column):
        parts.append(np.isnan)
        words.append(
            f"missing in {rows_in_words(len(column) - len(known))}: filled with the median and flagged"
        )
    reader = cells.READERS[kind]
    again = lambda column: _values(column, {cell: reader(cell) for cell in set(column)})
    treatment = "; ".join(filter(None, words))
    return Column(name, kind.split(",")[0], treatment, again, tuple(parts), form=kind), values


def _category(name: str, column: Cells, most: int) -> tuple[Column, np.ndarray]:
    stripped = lambda cell: "" if is_missing(cell) else cell.strip()
    counts = Counter(map(stripped, column))
    missing = counts.pop("", 0)
    if len(counts) == 1 and not missing:
        return _unused(name, f"the same in every row ({shown(column[0])})")
    if len(counts) > max(RARE, FREE_TEXT * sum(counts.values())):
        different = f"{len(counts):,} different values in {rows_in_words(len(column))}"
        return _unused(name, f"{different}: an identifier or free text")
    frequent = [level for level, count in counts.most_common(most) if count >= RARE]
    frequent = frequent or [counts.most_common(1)[0][0]]
    others = len(counts) - len(frequent)
    places = {level: i for i, level in enumerate(frequent)} | ({"": len(frequent)} if missing else {})
    width = len(places) + (others > 0)
    elsewhere = len(places) if others else -1  # -1: a value of trusted rows only has no column

    read = lambda column: np.array([places.get(stripped(cell), elsewhere) for cell in column], float)
    treatment = f"{len(counts):,} values"
    treatment += f", the {len(frequent)} most frequent by themselves" if others else ""
    treatment += f"; missing in {rows_in_words(missing)}: counted as a separate value" if missing else ""
    parts = tuple(partial(np.equal, float(i)) for i in range(width))
    return Column(name, "category", treatment, read, parts, frozenset(counts)), read(column)


def _unused(name: str, why: str) -> tuple[Column, np.ndarray]:
    return Column(name, "not used", why, lambda column: np.empty(0)), np.empty(0)


def _values(column: Cells, known: Mapping[str, float | None]) -> np.ndarray:
    """Return the values of all cells, NaN for missing and unreadable cells."""
    return np.array([known[cell] for cell in column], float)  # None becomes NaN


def _location(known: np.ndarray) -> tuple[float, float]:
    """Return the median, and the standard deviation with the outer 2 % clipped."""
    finite = np.clip(known[np.isfinite(known)], -HUGE, HUGE)
    if not len(finite):
        return 0.0, 1.0
    low, center, high = np.percentile(finite, (1, 50, 99))
    spreads = np.std(np.clip(finite, low, high)), np.std(finite)
    return float(center), float(next((spread for spread in spreads if spread > 0), 1.0))


def _standard(center: float, scale: float, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # an overflow is beyond the limit too
        return np.clip(np.nan_to_num((values - center) / scale, nan=0.0), -LARGEST, LARGEST)


def _counter(name: str, known: np.ndarray, rows: int) -> bool:
    """Return whether the column numbers the rows: distinct whole numbers, gapless or named as ID."""
    if len(known) < rows or not np.isfinite(known).all() or (known % 1).any() or len(np.unique(known)) < rows:
        return False
    return bool(np.ptp(known) == rows - 1) or NAMED_ID.fullmatch(name) is not None


def _copies(column: Cells, labels: Cells) -> bool:
    """Return whether each value belongs to one label, and each label to one value."""
    pairs = set(zip(map(str.strip, column), map(str.strip, labels), strict=True))
    values, names = ({pair[i] for pair in pairs} for i in (0, 1))
    return len(pairs) == len(values) == len(names) > 1


def _cycles(known: np.ndarray) -> dict[str, list[Callable[[np.ndarray], np.ndarray]]]:
    """Return sine and cosine of the position in every cycle that the dates cover."""

    def around(period: float) -> list[Callable[[np.ndarray], np.ndarray]]:
        wave = lambda function, days: np.nan_to_num(function(2 * np.pi * (days % period) / period))
        return [partial(wave, np.sin), partial(wave, np.cos)]

    covered = {"year": np.ptp(known) > 60, "week": np.ptp(known) >= 2, "day": (known % 1).any()}
    return {name: around(PERIODS[name]) for name, varies in covered.items() if varies}


def _notes(kind: str, column: Cells, read: dict[str, float | None]) -> str:
    """Describe the notation, other notations that fit, and unreadable cells."""
    fits = lambda reader: all(reader(cell) is not None for cell in read)
    kind, _, notes = kind.partition(", ")
    if notes == "day first" and fits(cells.month_first):
        notes += " (month first would fit as well)"
    if notes == "commas between thousands" and fits(cells.number_with_comma):
        notes += " (decimal commas would fit as well)"
    if notes == "dots between thousands":
        notes += " (decimal points would fit as well)"
    if strange := {cell for cell, value in read.items() if value is None}:
        odd = Counter(cell.strip() for cell in column if cell in strange)
        few = listed((cell for cell, _ in odd.most_common()), TOLD)
        notes += ("; " if notes else "") + f"no {kind} in {rows_in_words(odd.total())} ({few})"
    return notes
