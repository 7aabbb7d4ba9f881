"""Content of the files `ranked.csv` and `weights.csv`."""

import csv
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from bilevel.cleaning import cells
from bilevel.cleaning.findings import Findings

SIGNS = "=+\\-@＝＋－＠"  # full-width signs start a formula in Chinese and Japanese settings
BREAKS = "\r\n\v\f\x1c-\x1e\x85\u2028\u2029"
SIGN = re.compile(f"[{SIGNS}]")
# A sign where a reader may start a cell: at the start, after a line break, or after another common separator.
FORMULA = re.compile(rf"(^\s*|[{BREAKS}][^\S{BREAKS}]*|[,;\t|])([{SIGNS}][^{BREAKS},;\t|]*)")
INDENTED = re.compile(r"[\t\r\n]\s*\S")  # some spreadsheets strip this indentation
NUMBERS = cells.number, cells.number_with_thousands, cells.number_with_comma


def ranked_csv(found: Findings) -> tuple[str, int]:
    """Return the rows, the most suspicious first and trusted ones last, and the number of disarmed cells.

    Spreadsheets compute cells that begin with one of =+-@, so `disarmed` puts an apostrophe in front. The
    separator is the one of the table.
    """
    names = ["row", "suspicion", "weight", "given_label", "suggested_label", "suggested_probability"]
    lines, count = [], 0
    file: Any = SimpleNamespace(write=lambda line: lines.append(line.removesuffix("\r\n") + "\n"))
    # Python quotes a cell with a line break only if the break is part of the line terminator, so both kinds are.
    writer = csv.writer(file, delimiter=found.table.separator, lineterminator="\r\n")
    header = [disarmed(name) for name in found.table.header]
    writer.writerow([*(_free(name, header) for name in names), *header])
    for about, i in _ranked(found):
        row = found.table.rows[i]
        safe = [disarmed(cell) for cell in row]
        count += sum(a != b for a, b in zip(safe, row, strict=True))
        writer.writerow([i + 1, *about, *safe])
    return "".join(lines), count


def weights_csv(found: Findings) -> str:
    """Return one line per row of the table, separated by commas, for `sample_weight`."""
    count = len(found.table)
    weights, suspicion = np.full(count, "1", object), np.full(count, "", object)
    weights[found.rows] = [f"{value:.6g}" for value in found.weights]
    suspicion[found.rows] = [f"{value:.6g}" for value in found.suspicion]
    rows = zip(range(1, count + 1), weights, suspicion, strict=True)
    return "row,weight,suspicion\n" + "".join(f"{i},{weight},{doubt}\n" for i, weight, doubt in rows)


def _ranked(found: Findings) -> Iterator[tuple[list[str], int]]:
    """Return the results of each row, and its index in the table."""
    labels = [disarmed(name) for name in found.classes]
    for i in found.order:
        about = [f"{found.suspicion[i]:.6g}", f"{found.weights[i]:.6g}", labels[found.given[i]]]
        yield [*about, labels[found.suggested[i]], f"{found.sureness[i]:.4f}"], int(found.rows[i])
    place = found.table.index(found.label)
    for i in np.setdiff1d(np.arange(len(found.table)), found.rows):
        label = disarmed(found.table.rows[i][place].strip())
        yield ["", "1", label, label, ""], int(i)


def disarmed(cell: str) -> str:
    """Return the cell with an apostrophe wherever a formula could start; numbers and single signs stay."""
    if SIGN.search(cell) and not _is_number(cell):
        cell = FORMULA.sub(lambda found: found[1] + ("" if _is_number(found[2]) else "'") + found[2], cell)
    return f"'{cell}" if INDENTED.match(cell) and not _is_number(cell) else cell


def _is_number(cell: str) -> bool:
    return cell.strip() in ("", "+", "-") or any(reads(cell) is not None for reads in NUMBERS)


def _free(name: str, taken: list[str]) -> str:
    while name in taken:
        name = f"bilevel_{name}"
    return name
