"""CSV file as a table of strings, or an error with the place and the fix.

This module guesses only the separator; `encoding.py` interprets the cells.
"""

import csv
import difflib
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from bilevel.words import shown

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
# Compared in lower case and without spaces around. As a label, "none" is a word like any other.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?"})
MISSING_VALUE = MISSING | {"none", "-", "."}
UTF16 = (b"\xff\xfe", b"\xfe\xff")
SEPARATOR_LINE = re.compile(r"sep=.\r?\n", re.IGNORECASE)
SHEET = "save the sheet as CSV in UTF-8"
FORMATS = {  # files that are no text: the beginning of their content, the format, and the fix
    rb"\x1f\x8b": "compressed with gzip: unpack it first, e.g. gunzip -c {path} > unpacked.csv",
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": "compressed with bzip2: unpack it first, e.g. bunzip2 -c {path} > unpacked.csv",
    rb"\xfd7zXZ\0": "compressed with xz: unpack it first, e.g. xz -dc {path} > unpacked.csv",
    rb"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it first, e.g. zstd -dc {path} > unpacked.csv",
    rb"PK(\x03\x04|\x05\x06)": f"a workbook or a zip archive, not a CSV file: {SHEET}, or unpack the archive",
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": f"an old workbook (.xls), not a CSV file: {SHEET}",
    rb"(?s)PAR1.*PAR1\Z": "a Parquet file, not a CSV file: convert it first, "
    "e.g. pandas.read_parquet({path!r}).to_csv('table.csv', index=False)",
}
NAMED = 5  # names of a list in a message


class TableError(ValueError):
    """Error for a table that cannot be used; the message is one line with the place and the fix."""


@dataclass(frozen=True, eq=False)
class Table:
    """Cells of the file, row by row; `lines` are the lines of the file where the rows begin."""

    path: Path
    header: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]
    separator: str

    @cached_property
    def places(self) -> dict[str, int]:
        """Return the index of each column."""
        return {name: i for i, name in enumerate(self.header)}

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[str]:
        index = self.index(name)
        return [row[index] for row in self.rows]

    def index(self, name: str, what: str = "column") -> int:
        """Return the index of a column, or raise with the nearest name."""
        if (place := self.places.get(name)) is not None:
            return place
        folded = {one.casefold(): one for one in self.header}
        near = difflib.get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.5)
        hint = f"did you mean {shown(folded[near[0]])}?" if near else f"it has {listed(self.header, 8)}"
        raise TableError(f"{self.path} has no {what} {shown(name)}: {hint}")


def read_table(path: Path) -> Table:
    """Read a CSV file with a header line: UTF-8, separated by `,` `;` tab or `|`."""
    text = _decoded(_content(path), path)
    if line := SEPARATOR_LINE.match(text):  # written by Excel
        text = "\n" + text[line.end() :]  # lines keep their numbers
    separator = _separator(text, path)
    reader = _reader(text, delimiter=separator, skipinitialspace=separator != "\t", strict=True)
    header: tuple[str, ...] = ()
    rows, lines, begun = [], [], 1
    try:
        for row in reader:
            if row and not header:
                header = _header(row, path)
            elif row:  # skip empty lines
                if len(row) != len(header):
                    raise TableError(_ragged(path, begun, row, header, separator))
                rows.append(row)
                lines.append(begun)
            begun = reader.line_num + 1
    except csv.Error as error:
        problem = f"{error}; look for a quotation mark that is not closed or not doubled"
        wrong = "".join(islice(io.StringIO(text, newline=""), begun - 1, reader.line_num))
        if max(map(len, wrong.split(separator))) > csv.field_size_limit():
            problem = (
                f"a cell has more than {csv.field_size_limit():,} characters; shorten it, or look for a "
            )
            problem += "quotation mark that is not closed"
        raise TableError(f"{path}, line {begun}: {problem}") from error
    if not rows:
        raise TableError(f"{path} has a header but no rows: there is nothing to look at")
    return Table(path, header, rows, lines, separator)


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING_VALUE


def labels_of(table: Table, column: str) -> list[str]:
    """Return the labels without spaces around them, or raise if one is missing."""
    labels = [cell.strip() for cell in table.column(column)]
    empty = [line for line, label in zip(table.lines, labels, strict=True) if label.lower() in MISSING]
    if empty:
        raise TableError(
            f"{table.path}: the label column {shown(column)} is empty or NaN in {len(empty):,} of {len(table):,} rows "
            f"({plural('line', len(empty))} {listed(empty, show='{:,}'.format)}): fill the labels in, or leave these "
            "rows out"
        )
    return labels


def listed(names: Iterable[Any], most: int = NAMED, show: Any = shown) -> str:
    """Return the first names of a list."""
    few = [show(name) for name in islice(names, most + 1)]
    return ", ".join(few[:most]) + (", …" if few[most:] else "")


def rows_in_words(count: int) -> str:
    return f"{count:,} {plural('row', count)}"


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _content(path: Path) -> bytes:
    try:
        device = path.is_char_device() or path.is_block_device()
        content = b"" if device else path.read_bytes()
    except FileNotFoundError as error:
        siblings = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "name a CSV file"
        raise TableError(f"there is no file {path}: {hint}") from error
    except IsADirectoryError as error:
        raise TableError(f"{path} is a folder: name the CSV file in it") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise TableError(f"{path} cannot be read ({reason}): name a CSV file") from error
    if device:
        raise TableError(f"{path} is a device: name a CSV file")
    for start, what in FORMATS.items():
        if re.match(start, content):
            raise TableError(f"{path} is {what.format(path=str(path))}")
    if not content.strip():
        raise TableError(f"{path} is empty: a table has a header line and rows")
    return content


def _decoded(content: bytes, path: Path) -> str:
    if content.startswith(UTF16):
        raise TableError(
            f"{path} is not UTF-8 but UTF-16: save it as UTF-8, e.g. iconv -f UTF-16 -t UTF-8 {path} > utf8.csv"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The decoder does not count the byte-order mark that it took away.
        at = error.start + (3 if content.startswith(b"\xef\xbb\xbf") else 0)
        line = content.count(b"\n", 0, at) + 1
        raise TableError(
            f"{path} is not UTF-8: byte 0x{content[at]:02x} in line {line:,} (byte {at + 1:,} of the file); save it as "
            f"UTF-8, e.g. iconv -f LATIN1 -t UTF-8 {path} > utf8.csv"
        ) from error
    if (at := text.find("\0")) >= 0:
        line = text.count("\n", 0, at) + 1
        raise TableError(f"{path}, line {line:,}: there is a NUL character; this is not a CSV file")
    return text


def _reader(text: str, **options: Any) -> Any:
    return csv.reader(io.StringIO(text, newline=""), **options)


def _separator(text: str, path: Path) -> str:
    """Return the separator with most columns in the header; a comma in doubt."""
    start = text.lstrip("\r\n")[: csv.field_size_limit()]

    def columns(separator: str) -> int:
        try:
            return len(next(_reader(start, delimiter=separator, skipinitialspace=True)))
        except (csv.Error, StopIteration):
            return 0

    best = max(SEPARATORS, key=columns)
    if columns(best) < 2:
        raise TableError(
            f"{path} has one column only: expected a label and something to judge it by, in a header line separated by "
            "commas, semicolons, tabs or bars"
        )
    return best


def _header(row: list[str], path: Path) -> tuple[str, ...]:
    """Return the names of the columns. A column without a name gets its number."""
    names = tuple(name.strip() or f"column {i}" for i, name in enumerate(row, 1))
    first: dict[str, int] = {}
    for i, name in enumerate(names, 1):
        if first.setdefault(name, i) != i:
            raise TableError(
                f"{path} has two columns named {shown(name)}, number {first[name]} and {i}: rename one"
            )
    return names


def _ragged(path: Path, line: int, row: list[str], header: tuple[str, ...], separator: str) -> str:
    if len(row) < len(header):
        fix = f"fill it up with {SEPARATORS[separator]}s for empty cells"
    else:
        fix = f'put cells that contain a {SEPARATORS[separator]} into "quotation marks"'
    count = f"{len(row)} {plural('cell', len(row))}"
    return f"{path}, line {line:,} has {count}, but the header has {len(header)}: {fix}"
