"""`ranked.csv` and `weights.csv`."""

import csv
import io
from collections.abc import Iterator

import numpy as np

from bilevel.cleaning import cells
from bilevel.cleaning.findings import Findings

FORMULA = ("=", "+", "-", "@", "\t", "\r")
NUMBERS = cells.number, cells.number_with_thousands, cells.number_with_comma


def ranked_csv(found: Findings) -> tuple[str, int]:
    """Every row of the table, the most suspicious first, trusted ones last; and how many cells were disarmed.

    Spreadsheets compute cells that begin with one of =+-@. Such a cell, if it is not a number or a lone sign, gets an
    apostrophe in front, which makes it text. The table's own separator is kept.
    """
    names = ["row", "suspicion", "weight", "given_label", "suggested_label", "suggested_probability"]
    text, disarmed = io.StringIO(), 0
    writer = csv.writer(text, delimiter=found.table.separator, lineterminator="\n")
    harmless = [_harmless(name) for name in found.table.header]
    writer.writerow([*(_free(name, found.table.header) for name in names), *harmless])
    for about, i in _ranked(found):
        row = found.table.rows[i]
        if any(cell.startswith(FORMULA) for cell in row):
            made = [_harmless(cell) for cell in row]
            disarmed += sum(a != b for a, b in zip(made, row, strict=True))
            row = made
        writer.writerow([i + 1, *about, *row])
    return text.getvalue(), disarmed


def weights_csv(found: Findings) -> str:
    """A line for every row of the table, in its order, with commas in any case: made for `sample_weight`."""
    count = len(found.table)
    weights, suspicion = np.full(count, "1", object), np.full(count, "", object)
    weights[found.rows] = [f"{value:.6g}" for value in found.weights]
    suspicion[found.rows] = [f"{value:.6g}" for value in found.suspicion]
    lines = (
        f"{i},{weight},{doubt}\n" for i, (weight, doubt) in enumerate(zip(weights, suspicion, strict=True), 1)
    )
    return "row,weight,suspicion\n" + "".join(lines)


def _ranked(found: Findings) -> Iterator[tuple[list[str], int]]:
    """What was found out about each row, and its place in the table."""
    labels = [_harmless(name) for name in found.classes]
    for i in found.order:
        about = [f"{found.suspicion[i]:.6g}", f"{found.weights[i]:.6g}", labels[found.given[i]]]
        yield [*about, labels[found.suggested[i]], f"{found.sureness[i]:.4f}"], int(found.rows[i])
    place = found.table.index(found.label)
    for i in np.setdiff1d(np.arange(len(found.table)), found.rows):
        label = _harmless(found.table.rows[i][place].strip())
        yield ["", "1", label, label, ""], int(i)


def _harmless(cell: str) -> str:
    if (
        not cell.startswith(FORMULA)
        or cell.strip() in ("", "+", "-")
        or any(reads(cell) is not None for reads in NUMBERS)
    ):
        return cell
    return f"'{cell}"


def _free(name: str, taken: tuple[str, ...]) -> str:
    while name in taken:
        name = f"bilevel_{name}"
    return name
