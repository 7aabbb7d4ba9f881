"""Tables as CSV files. Equal numbers always give equal bytes."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from bilevel.atomic_files import write

Table = dict[str, Any]  # column name -> one value per row

DIGITS = 10  # enough for every plot and verdict, few enough to read


def joined(parts: list[Table]) -> Table:
    """Return the rows of all parts, which have the same columns; a part with scalars is one row."""
    return {name: np.hstack([part[name] for part in parts]) for name in parts[0]}


def write_table(path: Path, table: Table) -> None:
    """Write `table` as CSV to `path`; the file appears complete or not at all."""
    write(path, as_csv(table).encode())


def as_csv(table: Table) -> str:
    columns = {name: np.asarray(values) for name, values in table.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of a table must be equally long, got {lengths}")
    cell = lambda value: f"{value:.{DIGITS}g}" if isinstance(value, float | np.floating) else str(value)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(map(cell, values) for values in columns.values()), strict=True))
    return text.getvalue()


def read_table(path: Path) -> Table:
    """Return the columns of a CSV file, as floats where every entry is a number, otherwise as text."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return {name: _column([row[i] for row in rows]) for i, name in enumerate(header)}


def select(table: Table, **wanted: Any) -> Table:
    """Return the rows in which every named column has the wanted value."""
    keep = np.ones(len(next(iter(table.values()))), dtype=bool)
    for name, value in wanted.items():
        column = np.asarray(table[name])
        keep &= np.isclose(column, value) if column.dtype.kind == "f" else column == value
    return {name: np.asarray(values)[keep] for name, values in table.items()}


def numbers(table: Table, *columns: str, **wanted: Any) -> tuple[float, ...]:
    """Return the numbers of these columns in the first row that `select` finds."""
    row = select(table, **wanted)
    return tuple(float(row[column][0]) for column in columns)


def _column(entries: list[str]) -> np.ndarray:
    try:
        return np.array([float(entry) for entry in entries])
    except ValueError:
        return np.array(entries)
