"""The tables of a page: those that a command wrote into docs/measured/, and those in its text."""

import re
from dataclasses import dataclass
from pathlib import Path

from pages import FENCED, ROOT

MEASURED = ROOT / "docs" / "measured"
INCLUDED = re.compile(r"^```\{include\} (\S+\.md)\n(?::.*\n)*```$", re.MULTILINE)
COMMAND = re.compile(r"`((?:python benchmarks/(\w+)\.py|bilevel examples ([\w-]+))[^`]*)`")
FIGURE = r"(?:\w = )?[-−+<>≤≥≈~÷]? ?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?"
MEASUREMENT = re.compile(rf"{FIGURE}(?:(?: ± |–|, |; ){FIGURE})*(?: ?(?:×|%|s|ms|[kMG]i?B))?(?:,? .*)?")


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> list[str]:
        return [row[0] for row in self.rows]

    @property
    def measured(self) -> bool:
        """Return whether it has numbers other than names of theorems and options."""
        return any(MEASUREMENT.fullmatch(cell.strip("* ")) for row in self.rows for cell in row[1:])


@dataclass(frozen=True)
class Record:
    """A file of docs/measured/."""

    path: Path

    @property
    def tables(self) -> list[Table]:
        return tables(self.path.read_text())

    @property
    def repeatable(self) -> bool:
        return self.path.read_text().startswith("<!-- repeatable -->")

    @property
    def command(self) -> re.Match:
        found = COMMAND.search(self.path.read_text().rpartition("|\n")[2])
        assert found, f"{self.path} does not name the command that wrote it below its table"
        return found


def records() -> list[Record]:
    return [Record(path) for path in sorted(MEASURED.glob("*.md"))]


def tables(text: str) -> list[Table]:
    """Return the tables of a Markdown text, outside of code."""
    found: list[list[tuple[str, ...]]] = [[]]
    for line in FENCED.sub("", text).splitlines():
        if line.startswith("|"):
            cells = line.replace("\\|", "\0").strip().strip("|").split("|")
            found[-1].append(tuple(cell.strip().replace("\0", "\\|") for cell in cells))
        elif found[-1]:
            found.append([])
    return [Table(lines[0], tuple(lines[2:])) for lines in found if len(lines) > 2]
