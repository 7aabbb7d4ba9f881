"""CSV file as a table of strings, or an error with the place and the fix.

This module guesses only the separator; `encoding.py` interprets the cells.
"""

import csv
import difflib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bilevel.words import shown

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
# Compared in lower case and without spaces around. As a label, "none" is a word like any other.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?"})
MISSING_VALUE = MISSING | {"none", "-", "."}
UTF16 = (b"\xff\xfe", b"\xfe\xff")
SEPARATOR_LINE = re.compile(r"sep=.\r?\n", re.IGNORECASE)
# Content of files that are no text: the pattern, the format, and the fix.
UNPACK = "unpack it first, e.g. {} {{path}} > unpacked.csv"
SHEET = "save the sheet as CSV in UTF-8"
FORMATS = {
    rb"\x1f\x8b": ("compressed with gzip", UNPACK.format("gunzip -c")),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": ("compressed with bzip2", UNPACK.format("bunzip2 -c")),
    rb"\xfd7zXZ\0": ("compressed with xz", UNPACK.format("xz -dc")),
    rb"\x28\xb5\x2f\xfd": ("compressed with zstd", UNPACK.format("zstd -dc")),
    rb"PK(\x03\x04|\x05\x06)": (
        "a workbook or a zip archive, not a CSV file",
        f"{SHEET}, or unpack the archive",
    ),
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an old workbook (.xls), not a CSV file", SHEET),
    rb"(?s)PAR1.*PAR1\Z": (
        "a Parquet file, not a CSV file",
        "convert it first, e.g. pandas.read_parquet({path!r}).to_csv('table.csv', index=False)",
    ),
}
FIRST_SHOWN = 5


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
    places: Mapping[str, int] = field(init=False, repr=False)  # the index of each column

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", {name: i for i, name in enumerate(self.header)})

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
        few = ", ".join(map(shown, self.header[:8])) + (", …" if len(self.header) > 8 else "")
        hint = f"did you mean {shown(folded[near[0]])}?" if near else f"it has {few}"
        raise TableError(f"{self.path} has no {what} {shown(name)}: {hint}")

    def only(self, keep: Iterable[bool]) -> "Table":
        """Return the rows for which `keep` holds."""
        picked = [i for i, kept in enumerate(keep) if kept]
        return replace(self, rows=[self.rows[i] for i in picked], lines=[self.lines[i] for i in picked])


def read_table(path: Path) -> Table:
    """Read a CSV file with a header line: UTF-8, separated by `,` `;` tab or `|`."""
    text = _decoded(_content(path), path)
    if line := SEPARATOR_LINE.match(text):  # written by Excel
        text = "\n" + text[line.end() :]  # lines keep their numbers
    separator = _separator(text, path)
    rows = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=separator != "\t", strict=True
    )
    header: tuple[str, ...] = ()
    table = Table(path, header, [], [], separator)
    begun = 1
    try:
        for row in rows:
            if row:  # skip empty lines
                if not header:
                    header = _header(row, path)
                else:
                    if len(row) != len(header):
                        raise TableError(_ragged(path, begun, row, header, separator))
                    table.rows.append(row)
                    table.lines.append(begun)
            begun = rows.line_num + 1
    except csv.Error as error:
        lines = list(io.StringIO(text, newline=""))[begun - 1 : rows.line_num]
        if max(map(len, "".join(lines).split(separator))) > csv.field_size_limit():
            raise TableError(
                f"{path}, line {begun}: a cell has more than {csv.field_size_limit():,} characters; shorten it, or "
                "look for a quotation mark that is not closed"
            ) from error
        raise TableError(
            f"{path}, line {begun}: {error}; look for a quotation mark that is not closed or not doubled"
        ) from error
    if not table.rows:
        raise TableError(f"{path} has a header but no rows: there is nothing to look at")
    return replace(table, header=header)


def is_missing(cell: str) -> bool:
    return cell.strip().lower() in MISSING_VALUE


def labels_of(table: Table, column: str) -> list[str]:
    """Return the labels without spaces around them, or raise if one is missing."""
    labels = [cell.strip() for cell in table.column(column)]
    empty = [i for i, label in enumerate(labels) if label.lower() in MISSING]
    if empty:
        where = ", ".join(f"{table.lines[i]:,}" for i in empty[:FIRST_SHOWN])
        more = ", …" if len(empty) > FIRST_SHOWN else ""
        lines = "line" if len(empty) == 1 else "lines"
        raise TableError(
            f"{table.path}: the label column {shown(column)} is empty or NaN in {len(empty):,} of {len(table):,} rows "
            f"({lines} {where}{more}): fill the labels in, or leave these rows out"
        )
    return labels


def _content(path: Path) -> bytes:
    try:
        if path.is_char_device() or path.is_block_device():
            raise TableError(f"{path} is a device: name a CSV file")
        content = path.read_bytes()
    except TableError:
        raise
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
    for start, (what, fix) in FORMATS.items():
        if re.match(start, content):
            raise TableError(f"{path} is {what}: {fix.format(path=str(path))}")
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


def _separator(text: str, path: Path) -> str:
    """Return the separator with most columns in the header; a comma in doubt."""
    start = text.lstrip("\r\n")[: csv.field_size_limit()]

    def columns(separator: str) -> int:
        rows = csv.reader(io.StringIO(start, newline=""), delimiter=separator, skipinitialspace=True)
        try:
            return len(next(rows))
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
    count = f"{len(row)} cell" + "s" * (len(row) != 1)
    return f"{path}, line {line:,} has {count}, but the header has {len(header)}: {fix}"
