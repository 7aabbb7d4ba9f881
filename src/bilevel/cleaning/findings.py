"""Result of a ranking, the source of files, page and terminal output."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bilevel.cleaning.encoding import Encoding
from bilevel.cleaning.evaluation import Worth
from bilevel.cleaning.table import Table

LONGEST = 48  # characters of a cell on the page or the terminal


@dataclass(frozen=True, eq=False)
class Findings:
    """Result of a ranking. Arrays have one entry per judged row, and `rows` are the indices in the table."""

    table: Table
    label: str
    classes: tuple[str, ...]
    rows: np.ndarray
    given: np.ndarray  # labels, as indices in `classes`
    weights: np.ndarray
    suspicion: np.ndarray
    probabilities: np.ndarray
    encoding: Encoding
    telling: list[str]  # the columns in use, the most informative first
    trusted: int  # number of trusted rows
    worth: Worth | None  # None with --no-check
    notes: tuple[str, ...]
    made: dict[str, str]  # settings and versions

    @cached_property
    def order(self) -> np.ndarray:
        """Return the rows, the most suspicious first and equal ones in the order of the file."""
        return np.argsort(-self.suspicion, kind="stable")

    @cached_property
    def suggested(self) -> np.ndarray:
        return np.argmax(self.probabilities, axis=1)

    @cached_property
    def sureness(self) -> np.ndarray:
        """Return the probability of the suggested label."""
        return self.probabilities[np.arange(len(self.rows)), self.suggested]

    @cached_property
    def disputed(self) -> np.ndarray:
        """Return whether the suggested label differs from the given one."""
        return self.suggested != self.given

    @cached_property
    def expected(self) -> tuple[int, int, int] | None:
        """Return the number of wrong labels and its interval, estimated on the trusted rows."""
        shares = self.worth.share_wrong() if self.worth else None
        if shares is None:
            return None
        wrong, least, most = (round(share * len(self.rows)) for share in shares)
        return wrong, least, most


def tame(cell: str, longest: int = LONGEST) -> str:
    """Return one short line without control characters, because a table is untrusted text."""
    line = " ".join(cell.split())
    line = line if len(line) <= longest else f"{line[: longest - 1]}…"
    return "".join(letter if letter.isprintable() else "�" for letter in line)
