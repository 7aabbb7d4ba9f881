"""Inputs of a ranking, from one or two tables. This module and `table.py` reject bad tables."""

import difflib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bilevel.cleaning.cells import DECIMAL_COMMA, number
from bilevel.cleaning.encoding import READABLE, Encoding, fit_encoding
from bilevel.cleaning.table import (
    Table,
    TableError,
    is_missing,
    labels_of,
    listed,
    plural,
    read_table,
    rows_in_words,
)
from bilevel.words import shown

PER_CLASS = 5  # trusted rows of a class: one for each fold of the evaluation
MOST_CLASSES = 100
MOST_NUMBERS = 20  # labels with a fraction; more are measurements
YES, NO = frozenset({"true", "1", "yes", "y", "t", "1.0"}), frozenset({"false", "0", "no", "n", "f", "0.0"})
MARKS = YES | NO
UNIQUE = 0.9  # the share of unique rows from which cells identify rows


@dataclass(frozen=True, eq=False)
class Inputs:
    """Arrays for the model; `rows` are the table's indices of the rows to judge."""

    table: Table
    classes: tuple[str, ...]
    encoding: Encoding
    rows: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray
    trusted_inputs: np.ndarray
    trusted_labels: np.ndarray
    notes: tuple[str, ...]


def read_inputs(
    data: Path,
    label: str,
    trusted: Path | None = None,
    trusted_column: str | None = None,
    leave_out: Collection[str] = (),
    categories: Collection[str] = (),
) -> Inputs:
    """Return the encoded table and its trusted rows, from a second file or marked in a column."""
    if (trusted is None) == (trusted_column is None):
        raise TableError("say which labels are trusted: either --trusted FILE or --trusted-column COLUMN")
    table = read_table(data)
    table.index(label, "label column")
    for name in (*leave_out, *categories):
        table.index(name)
    if label in leave_out or label in categories or label == trusted_column:
        raise TableError(f"{shown(label)} is the label column: name another one")
    labels = labels_of(table, label)
    classes = tuple(sorted(set(labels), key=_natural))
    codes = {name: i for i, name in enumerate(classes)}
    coded = lambda labels: np.array([codes[name] for name in labels], np.int32)
    notes = _similar_labels(labels)
    if trusted is None:
        mark = trusted_column or ""
        marked = _marked(table, mark)
        right = [labels[i] for i in np.flatnonzero(marked)]
        given = [labels[i] for i in np.flatnonzero(~marked)]
        if not given:
            raise TableError(f"{data}: every row is trusted in {shown(mark)}, so there is none to judge")
        _check_labels(data, given, data, right, label)
        encoding, inputs = fit_encoding(table, label, {*leave_out, mark}, categories)
        judged, trusted_inputs = np.flatnonzero(~marked), inputs[marked]
    else:
        other = read_table(trusted)
        _check_columns(table, other, leave_out)
        right = labels_of(other, label)
        _check_labels(data, labels, trusted, right, label)
        encoding, inputs = fit_encoding(table, label, leave_out, categories)
        notes = _check_cells(encoding, table, other) + notes
        judged, more = _rows_to_judge(table, labels, other, right, label)
        notes += more
        trusted_inputs = encoding(other)
    parts = judged, inputs[judged], coded(labels)[judged], trusted_inputs, coded(right)
    return Inputs(table, classes, encoding, *parts, tuple(notes))


def _check_columns(table: Table, trusted: Table, leave_out: Collection[str]) -> None:
    missing = [name for name in table.header if name not in leave_out and name not in trusted.places]
    if missing:
        raise TableError(
            f"{trusted.path} lacks the {plural('column', len(missing))} {listed(missing)} of {table.path}: both need "
            "the same columns, in any order; a column that does not matter can be left out with --ignore"
        )


def _rows_to_judge(
    table: Table, labels: list[str], trusted: Table, right: list[str], label: str
) -> tuple[np.ndarray, list[str]]:
    """Return the rows that are not trusted rows, and notes on the others."""
    known = known_rows(table, trusted, label)
    judged = np.setdiff1d(np.arange(len(table)), list(known))
    if not len(judged):
        both = f"every row of {table.path} is also in {trusted.path}"
        raise TableError(f"{both}: trust only rows that were checked")
    notes = []
    if known:
        rows, are = f"{rows_in_words(len(known))} of the table", "is" if len(known) == 1 else "are"
        notes.append(f"{rows} {are} also among the trusted ones, and not judged.")
    if other := [table.lines[i] for i, j in known.items() if labels[i] != right[j]]:
        where, has = listed(other, show="{:,}".format), "has" if len(other) == 1 else "have"
        rows = f"{rows_in_words(len(other))} of the table"
        notes.append(f"{rows} {has} another label than the trusted copy: line {where}.")
    return judged, notes


def known_rows(table: Table, trusted: Table, label: str) -> dict[int, int]:
    """Return the trusted row of each row of the table with the same cells except the label.

    Return nothing if many rows share all their cells: then equal rows need not be the same row.
    """
    names = [name for name in table.header if name != label and name in trusted.places]
    keys, others = (_keys(part, [part.index(name) for name in names]) for part in (table, trusted))
    often, often_there = Counter(keys), Counter(others)
    if sum(count == 1 for count in often.values()) < UNIQUE * len(keys):
        return {}
    where = {key: j for j, key in enumerate(others) if often_there[key] == 1}
    return {i: where[key] for i, key in enumerate(keys) if often[key] == 1 and key in where}


def _keys(table: Table, places: list[int]) -> list[tuple[str, ...]]:
    return [tuple(row[i].strip() for i in places) for row in table.rows]


def _check_cells(encoding: Encoding, table: Table, trusted: Table) -> list[str]:
    """Return notes on values in trusted rows that the data lack; raise if a whole column differs."""
    extra = [name for name in trusted.header if name not in table.places]
    notes = [f"Columns that only the trusted rows have were not used: {listed(extra)}."] if extra else []
    for column in filter(lambda column: column.parts, encoding.columns):
        cells, category = trusted.column(column.name), column.kind == "category"
        if category:
            unread = [cell.strip() not in column.known for cell in cells]
        elif column.form == DECIMAL_COMMA and not any("," in cell for cell in cells):
            unread = ["." in cell for cell in cells]  # with a decimal point
        else:
            unread = np.isnan(column.read(cells))
        odd = [cell for cell, wrong in zip(cells, unread, strict=True) if wrong and not is_missing(cell)]
        what = "a value of no row of the data" if category else f"no {column.kind}"
        if not category and len(odd) > (1 - READABLE) * len(cells):
            line = trusted.lines[cells.index(odd[0])]
            form = f" ({column.treatment.split(';')[0]})" if column.treatment else ""
            raise TableError(
                f"{trusted.path}, line {line:,}: {shown(odd[0])} in {shown(column.name)} is {what}{form}, as the "
                "data's are: write both files alike, or leave the column out with --ignore"
            )
        if odd:
            where = f"In {rows_in_words(len(odd))} of the trusted ones"
            notes.append(f"{where} {shown(column.name)} is {what}: {listed(dict.fromkeys(odd))}.")
    return notes


def _similar_labels(labels: list[str]) -> list[str]:
    written: dict[str | float, set[str]] = {}
    for name in dict.fromkeys(labels):
        written.setdefault(_meant(name), set()).add(name)
    note = "Labels that differ only in writing count as different"
    return [f"{note}: {listed(sorted(names))}." for names in written.values() if len(names) > 1]


def _meant(label: str) -> str | float:
    """Return the value of a number, and a word in one case."""
    value = number(label)
    return label.casefold() if value is None or value != value else value


def _marked(table: Table, column: str) -> np.ndarray:
    """Return the trusted rows, with true, 1 or yes. Other rows have false, 0, no or an empty cell."""
    table.index(column, "column of trusted rows")
    cells = table.column(column)
    for line, cell in zip(table.lines, cells, strict=True):
        if cell.strip().lower() not in MARKS and not is_missing(cell):
            raise TableError(
                f"{table.path}, line {line:,}: {shown(cell)} in {shown(column)} says neither true nor false: write "
                "true, 1 or yes for a trusted row, and false, 0, no or nothing for others"
            )
    return np.array([cell.strip().lower() in YES for cell in cells])


def _check_labels(path: Path, labels: list[str], trusted_path: Path, trusted: list[str], label: str) -> None:
    counts, right = Counter(labels), Counter(trusted)
    if len(counts) == 1:
        raise TableError(
            f"{path}: all labels in {shown(label)} are {shown(labels[0])}; there must be at least two classes"
        )
    fractions = sum((value := number(name)) is not None and value % 1 != 0 for name in counts)
    if len(counts) > MOST_CLASSES or fractions > MOST_NUMBERS:
        raise TableError(
            f"{path}: the label column {shown(label)} has {len(counts):,} different values ({listed(counts)}): that "
            f"looks like a measurement or a name, not a class; put it into at most {MOST_CLASSES} classes"
        )
    if unknown := [name for name in right if name not in counts]:
        same = [name for name in counts if _meant(name) == _meant(unknown[0])]
        near = same or difflib.get_close_matches(unknown[0], counts, n=1)
        every = f"{path} has {listed(sorted(counts, key=_natural))}"
        hint = f"did you mean {shown(near[0])}?" if near else every
        problem = f"no row of the data has the trusted label {shown(unknown[0])}"
        raise TableError(f"{trusted_path}: {problem}: {hint}")
    if short := [name for name in sorted(counts, key=_natural) if right[name] < PER_CLASS]:
        have = listed(short, show=lambda name: f"{right[name]} of {shown(name)}")
        raise TableError(
            f"{trusted_path}: too few trusted rows ({have}): {PER_CLASS} of each of the {len(counts)} classes are "
            f"needed, {PER_CLASS * len(counts)} at least; check more rows, or join or leave out rare classes"
        )


def _natural(name: str) -> tuple[int, float, str]:
    """Return a sort key: numbers by value, before words."""
    value = _meant(name)
    return (1, 0.0, name) if isinstance(value, str) else (0, value, name)
