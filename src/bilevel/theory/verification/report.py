"""Result of `verify`: one row per inequality, with a verdict."""

import io
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text


class Verdict(StrEnum):
    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_APPLICABLE = "hypothesis not met"


@dataclass(frozen=True)
class Row:
    """One inequality lhs ≤ rhs over a run."""

    name: str
    statement: str
    verdict: Verdict
    reason: str = ""  # the hypothesis that is not met
    slack: float | None = None  # smallest rhs − lhs, corrected for measurement errors
    relative_slack: float | None = None  # smallest (rhs − lhs)/rhs
    at: int | None = None  # the iteration with the smallest relative slack
    first_violation: int | None = None  # the first iteration where lhs > rhs


@dataclass(frozen=True)
class Report:
    """Verdict on one run: every row, and the origin of the constants."""

    method: str
    steps: int
    step_sizes: dict[str, float]
    hypotheses: dict[
        str, str
    ]  # by constant: its value, whether it is declared or estimated, and checked or not
    reference_residual: float  # largest residual of the equations for y* and v*
    tolerance: float
    rows: tuple[Row, ...]

    @property
    def violations(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.verdict is Verdict.VIOLATED)

    @property
    def ok(self) -> bool:
        """Return whether no inequality was violated; inequalities with unmet hypotheses do not count."""
        return not self.violations

    def __getitem__(self, name: str) -> Row:
        """Return the row with a name that begins with `name`, e.g. `report["Lemma 5.5"]`."""
        found = [row for row in self.rows if row.name.startswith(name)]
        if len(found) != 1:
            names = ", ".join(row.name for row in (found or self.rows))
            raise KeyError(f"{name!r} is the beginning of {len(found)} rows; these exist: {names}")
        return found[0]

    @property
    def summary(self) -> str:
        judged = [row for row in self.rows if row.verdict is not Verdict.NOT_APPLICABLE]
        skipped = len(self.rows) - len(judged)
        skip = f"; {skipped} not judged, because their hypotheses are not met" if skipped else ""
        if self.ok:
            return f"{self.method}, {self.steps} steps: all {len(judged)} inequalities judged hold{skip}."
        broken = "; ".join(f"{row.name} (first at k = {row.first_violation})" for row in self.violations)
        count = f"{len(self.violations)} of {len(judged)}"
        return f"{self.method}, {self.steps} steps: {count} inequalities violated{skip}: {broken}."

    def table(self) -> Table:
        """Return the rows as a rich table."""
        steps = ", ".join(f"{name} = {value:.4g}" for name, value in self.step_sizes.items())
        table = Table(title=f"{self.method}, {self.steps} steps, {steps}", title_justify="left")
        for column in ("inequality", "verdict"):
            table.add_column(column)
        for column in ("smallest slack", "relative", "at k"):
            table.add_column(column, justify="right")
        for row in self.rows:
            table.add_row(row.name, *_cells(row))
        return table

    def __rich__(self) -> Group:
        lines = [f"{name}: {text}" for name, text in self.hypotheses.items()]
        lines.append(
            f"reference residual {self.reference_residual:.1e}; a violation must exceed the reference's own "
            f"error and {self.tolerance:g} of the right side"
        )
        return Group(self.table(), Text("\n".join([*lines, self.summary])))

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=120).print(self)
        return out.getvalue().rstrip()


def _cells(row: Row) -> tuple[Text | str, ...]:
    if row.verdict is Verdict.NOT_APPLICABLE:
        return Text(row.reason, style="dim"), "", "", ""
    numbers = (f"{row.slack:.3g}", f"{row.relative_slack:.3g}", str(row.at))
    if row.verdict is Verdict.VIOLATED:
        return Text(f"VIOLATED first at {row.first_violation}", style="bold red"), *numbers
    return Text("holds", style="green"), *numbers
