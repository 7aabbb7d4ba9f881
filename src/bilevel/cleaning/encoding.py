"""The columns of a table as a matrix of numbers: fitted on the data, applied to the trusted rows alike.

| column | becomes |
| --- | --- |
| number | centered at its median, in standard deviations after its outer 2 % were moved in, cut off at ±6 |
| category | one 0/1 column for each frequent value, one for all others together |
| date, time | a number, and sine and cosine of its place in the year, the week and the day, as far as they vary |
| missing | filled with the median and flagged in a 0/1 column; a separate value in a category |
| constant, identifier, free text, a copy of the label | nothing |

The treatment of every column is kept in words, for the report.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from bilevel.cleaning import cells
from bilevel.cleaning.table import Table, TableError, is_missing
from bilevel.words import shown

LARGEST = 6.0  # standard deviations
HUGE = 1e150  # of which the square is still a number
READABLE = 0.95  # of the cells of a column of numbers or dates are such, the others count as missing
LEVELS, FEWEST_LEVELS, ALL_LEVELS = 30, 4, 300  # of a category, and of all categories together
RARE = 5  # rows; a value that fewer have is one of the others
FREE_TEXT = 0.5  # distinct values a row
NAMED_ID = re.compile(r"(.*[\W_])?(id|uuid|guid|key|index)", re.IGNORECASE)
TOLD = 3  # odd cells shown

Cells = list[str]
Part = Callable[[np.ndarray], np.ndarray]


class Column(NamedTuple):
    """How one column of the table is used."""

    name: str
    kind: str  # number, category, date, time, not used
    treatment: str  # in words
    read: Callable[[Cells], np.ndarray]  # one value for each cell
    parts: tuple[Part, ...] = ()  # columns of the matrix, as functions of these values
    known: frozenset[str] = frozenset()  # of a category, its values
    form: str = ""  # of numbers and dates, how they are written


class Encoding(NamedTuple):
    """From tables with these columns to matrices."""

    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        return sum(len(column.parts) for column in self.columns)

    def __call__(self, table: Table) -> np.ndarray:
        """float32, one row for each of the table's."""
        used = [column for column in self.columns if column.parts]
        return _matrix([(column, column.read(table.column(column.name))) for column in used], len(table))


def fit_encoding(
    table: Table, label: str, leave_out: Collection[str] = (), categories: Collection[str] = ()
) -> tuple[Encoding, np.ndarray]:
    """How to encode every column but the label and `leave_out`, and the table so encoded.

    `categories` are such even if they look like numbers.
    """
    names = [name for name in table.header if name != label and name not in leave_out]
    labels = table.column(label)
    read = {name: _read(table.column(name), name in categories) for name in names}
    worded = sum(kind == "category" for kind, _ in read.values())
    most = min(LEVELS, max(FEWEST_LEVELS, ALL_LEVELS // max(worded, 1)))
    fitted = [_fit(name, *read[name], table.column(name), labels, most) for name in names]
    encoding = Encoding(tuple(column for column, _ in fitted))
    if not encoding.width:
        why = "; ".join(f"{column.name}: {column.treatment}" for column in encoding.columns)
        raise TableError(
            f"{table.path} has no column to judge the labels by ({why or 'there is no other column'})"
        )
    return encoding, _matrix([(column, values) for column, values in fitted if column.parts], len(table))


def telling(encoding: Encoding, matrix: np.ndarray, labels: np.ndarray) -> list[str]:
    """The columns in use, those first of whose variance the labels explain most (η², of their best part)."""
    members = np.eye(int(labels.max()) + 1, dtype=np.float32)[labels]
    counts = np.maximum(members.sum(axis=0), 1)[:, None]
    centered = matrix - matrix.mean(axis=0)
    between = (counts * (members.T @ centered / counts) ** 2).sum(axis=0)
    explained = iter(between / np.maximum((centered**2).sum(axis=0), 1e-12))
    scores = {
        column.name: max(next(explained) for _ in column.parts) for column in encoding.columns if column.parts
    }
    return sorted(scores, key=lambda name: -scores[name])


DOTTED, GROUPED = "number, dots between thousands", "number, commas between thousands"
DECIMAL_COMMA = "number, decimal comma"
READERS: dict[str, cells.Reader] = {
    DOTTED: cells.number_with_comma,
    "number": cells.number,
    GROUPED: cells.number_with_thousands,
    DECIMAL_COMMA: cells.number_with_comma,
    "date": cells.date,
    "date, day first": cells.day_first,
    "date, month first": cells.month_first,
    "time": cells.time_of_day,
}


def _matrix(columns: list[tuple[Column, np.ndarray]], rows: int) -> np.ndarray:
    matrix, at = np.empty((rows, sum(len(column.parts) for column, _ in columns)), np.float32), 0
    for column, values in columns:
        for part in column.parts:
            matrix[:, at] = part(values)
            at += 1
    return matrix


def _read(column: Cells, forced: bool) -> tuple[str, dict[str, float | None]]:
    """What the column is, and what its reader makes of every distinct cell.

    It is what the first reader takes it for that makes sense of nearly all cells, and a category if none does.
    """
    counts = Counter(column)
    if all(is_missing(cell) for cell in counts):
        return "empty", {}
    for kind, reader in READERS.items() if not forced else ():
        if kind == DOTTED and not _dots_group(counts):
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
    """Whether 1.234 is a thousand and more: three digits follow every dot, and what is less than that has none."""
    dotted = whole = False
    for cell in map(str.strip, counts):
        if cell.isdigit():
            whole = True
            if len(cell) > 3:
                return False
        elif "." in cell and not is_missing(cell):
            dotted = True
            if not cells.DOTS_GROUP.fullmatch(cell):
                return False
    return dotted and whole


def _fit(
    name: str, kind: str, known: dict[str, float | None], column: Cells, labels: Cells, most: int
) -> tuple[Column, np.ndarray]:
    if kind == "empty":
        return _unused(name, "empty in every row")
    if _copies(column, labels):
        return _unused(
            name, "says the same as the label in every row, so it cannot tell whether the label is right"
        )
    if kind == "category":
        return _category(name, column, most)
    return _measured(name, kind, known, column)


def _measured(
    name: str, kind: str, read: dict[str, float | None], column: Cells
) -> tuple[Column, np.ndarray]:
    """A column of numbers or dates."""
    values = _looked_up(column, read)
    known = values[~np.isnan(values)]
    if len(known) == len(column) and (known == known[0]).all():
        return _unused(name, f"the same in every row ({shown(column[0])})")
    moment = kind.startswith(("date", "time"))
    if not moment and _counter(name, known, len(column)):
        return _unused(name, "a different whole number in every row: an identifier")
    center, scale = _location(known)
    parts: list[Part] = [partial(_standard, center, scale)]
    words = [_said(kind, column, read)]
    if moment:
        cycles = _cycles(known)
        parts += [part for cycle in cycles.values() for part in cycle]
        words += [
            f"as a number, and its place in the {' and the '.join(cycles)}" if cycles else "as a number"
        ]
    if len(known) < len(column):
        parts.append(np.isnan)
        words.append(f"missing in {_rows(len(column) - len(known))}: filled with the median and flagged")
    reader = READERS[kind]
    again = lambda column: _looked_up(column, {cell: reader(cell) for cell in set(column)})
    said = "; ".join(filter(None, words))
    return Column(name, kind.split(",")[0], said, again, tuple(parts), form=kind), values


def _category(name: str, column: Cells, most: int) -> tuple[Column, np.ndarray]:
    stripped = lambda cell: "" if is_missing(cell) else cell.strip()
    counts: Counter[str] = Counter()
    for cell, count in Counter(column).items():
        counts[stripped(cell)] += count
    missing = counts.pop("", 0)
    if len(counts) == 1 and not missing:
        return _unused(name, f"the same in every row ({shown(column[0])})")
    if len(counts) > max(RARE, FREE_TEXT * sum(counts.values())):
        return _unused(
            name, f"{len(counts):,} different values in {_rows(len(column))}: an identifier or free text"
        )
    frequent = [level for level, count in counts.most_common(most) if count >= RARE]
    frequent = frequent or [counts.most_common(1)[0][0]]
    others = len(counts) - len(frequent)
    places = {level: i for i, level in enumerate(frequent)} | ({"": len(frequent)} if missing else {})
    width = len(places) + (others > 0)
    elsewhere = len(places) if others else -1  # a value that only trusted rows have is none of these

    def read(column: Cells) -> np.ndarray:
        return _looked_up(column, {cell: places.get(stripped(cell), elsewhere) for cell in set(column)})

    words = [
        f"{len(counts):,} values" + (f", the {len(frequent)} most frequent by themselves" if others else "")
    ]
    words += [f"missing in {_rows(missing)}: counted as a separate value"] if missing else []
    parts = tuple(partial(np.equal, float(i)) for i in range(width))
    return Column(name, "category", "; ".join(words), read, parts, frozenset(counts)), read(column)


def _unused(name: str, why: str) -> tuple[Column, np.ndarray]:
    nothing = lambda column: np.empty(0)
    return Column(name, "not used", why, nothing), np.empty(0)


def _looked_up(column: Cells, known: Mapping[str, float | int | None]) -> np.ndarray:
    """NaN where a cell is missing or odd."""
    return np.array([known[cell] for cell in column], float)  # which makes NaN of None


def _location(known: np.ndarray) -> tuple[float, float]:
    """Median, and standard deviation with the outer 2 % moved in: outliers hardly count, but vary."""
    finite = np.clip(known[np.isfinite(known)], -HUGE, HUGE)
    if not len(finite):
        return 0.0, 1.0
    low, center, high = np.percentile(finite, (1, 50, 99))
    spreads = np.std(np.clip(finite, low, high)), np.std(finite)
    return float(center), float(next((spread for spread in spreads if spread > 0), 1.0))


def _standard(center: float, scale: float, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is beyond float64 is beyond the limit, too
        return np.clip(np.nan_to_num((values - center) / scale, nan=0.0), -LARGEST, LARGEST)


def _counter(name: str, known: np.ndarray, rows: int) -> bool:
    """Whether the column numbers the rows: whole, all different, and without gaps or called an identifier."""
    if len(known) < rows or not np.isfinite(known).all() or (known % 1).any() or len(np.unique(known)) < rows:
        return False
    return bool(np.ptp(known) == rows - 1) or NAMED_ID.fullmatch(name) is not None


def _copies(column: Cells, labels: Cells) -> bool:
    """Whether each value belongs to one label, and each label to one value: written twice, wrong twice."""
    label_of: dict[str, str] = {}
    cell_of: dict[str, str] = {}
    for cell, label in zip(map(str.strip, column), map(str.strip, labels), strict=True):
        if label_of.setdefault(cell, label) != label or cell_of.setdefault(label, cell) != cell:
            return False  # for most columns after a few rows
    return len(label_of) > 1


def _cycles(known: np.ndarray) -> dict[str, list[Callable[[np.ndarray], np.ndarray]]]:
    """Sine and cosine of the places in those cycles that the dates go through."""

    def around(period: float) -> list[Callable[[np.ndarray], np.ndarray]]:
        angle = lambda days: 2 * np.pi * (days % period) / period
        return [
            lambda days: np.nan_to_num(np.sin(angle(days))),
            lambda days: np.nan_to_num(np.cos(angle(days))),
        ]

    whole = not (known % 1).any()
    varies = {
        "year": (365.2425, np.ptp(known) > 60),
        "week": (7.0, np.ptp(known) >= 2),
        "day": (1.0, not whole),
    }
    return {name: around(period) for name, (period, does) in varies.items() if does}


def _said(kind: str, column: Cells, read: dict[str, float | None]) -> str:
    """What is particular about how the cells were read."""
    told = kind.partition(", ")[2]
    if kind == "date, day first" and all(cells.month_first(cell) is not None for cell in read):
        told += " (month first would fit as well)"
    if kind == GROUPED and all(cells.number_with_comma(cell) is not None for cell in read):
        told += " (decimal commas would fit as well)"
    if kind == DOTTED:
        told += " (decimal points would fit as well)"
    if strange := {cell for cell, value in read.items() if value is None}:
        odd = Counter(cell.strip() for cell in column if cell in strange)
        few = ", ".join(shown(cell) for cell, _ in odd.most_common(TOLD)) + (", …" if len(odd) > TOLD else "")
        told += ("; " if told else "") + f"no {kind.split(',')[0]} in {_rows(odd.total())} ({few})"
    return told


def _rows(count: int) -> str:
    return f"{count:,} row" + "s" * (count != 1)
