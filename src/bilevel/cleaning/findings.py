"""All that is known at the end, in one value, from which files, page and terminal are written."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bilevel.cleaning.encoding import Encoding
from bilevel.cleaning.evaluation import Worth
from bilevel.cleaning.table import Table

LONGEST = 48  # characters of a cell on the page or the terminal


@dataclass(frozen=True, eq=False)
class Findings:
    """Arrays have one entry for each row that was judged; `rows` says where in the table it stands."""

    table: Table
    label: str
    classes: tuple[str, ...]
    rows: np.ndarray
    given: np.ndarray  # labels, as places in `classes`
    weights: np.ndarray
    suspicion: np.ndarray
    probabilities: np.ndarray
    encoding: Encoding
    telling: list[str]  # the columns in use, those first that tell the labels apart
    trusted: int  # how many rows
    worth: Worth | None  # None if it was not asked for
    notes: tuple[str, ...]
    made: dict[str, str]  # settings and versions

    @cached_property
    def order(self) -> np.ndarray:
        """The most suspicious first; of equals, the first in the file."""
        return np.argsort(-self.suspicion, kind="stable")

    @cached_property
    def suggested(self) -> np.ndarray:
        return np.argmax(self.probabilities, axis=1)

    @cached_property
    def sureness(self) -> np.ndarray:
        """The probability of the suggested label."""
        return self.probabilities[np.arange(len(self.rows)), self.suggested]

    @cached_property
    def disputed(self) -> np.ndarray:
        """Where the suggested label is another than the given one."""
        return self.suggested != self.given

    @cached_property
    def expected(self) -> tuple[int, int, int] | None:
        """How many of the labels are wrong, at least and at most, as far as the trusted rows can tell."""
        shares = self.worth.share_wrong() if self.worth else None
        if shares is None:
            return None
        share, least, most = (round(share * len(self.rows)) for share in shares)
        return share, least, most


def tame(cell: str, longest: int = LONGEST) -> str:
    """One short line without anything that a terminal or a browser would obey: a table is a stranger's text."""
    line = " ".join(cell.split())
    line = line if len(line) <= longest else f"{line[: longest - 1]}…"
    return "".join(letter if letter.isprintable() else "�" for letter in line)
