"""Answer of `advise`, and its printed form."""

import io
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bilevel.theory.certificates.certificate import StepSizes
from bilevel.theory.estimation.estimates import Estimated
from bilevel.theory.estimation.sampled import Sampled
from bilevel.theory.estimation.stationarity import Stationarity


@dataclass(frozen=True)
class Advice:
    """Observations of `bl.advise` along a run from a start, and its recommendation."""

    estimated: Estimated  # the worst of all observed points
    sampled: dict[str, Sampled]  # by certificate; if it is empty, `notes` has the reason
    practical: StepSizes
    tried: bool  # whether the practical β passed its trial
    damping: float  # added to ∇²_yy g wherever it was inverted; 0 if g is strongly convex
    at: Stationarity  # hypergradient, ITD's bias and the curvature of Φ at (x0, y*(x0))
    along: tuple[Stationarity, ...]  # the same at points of AID's run, with the curvature of Φ at the start
    method: str  # "AID" or "ITD"
    recommendation: str
    notes: tuple[str, ...] = ()  # the observed points, and all failures
    projected: bool = False  # ‖∇Φ‖ is then the norm of the gradient mapping

    @property
    def bias_share(self) -> float:
        """Return ITD's bias as a share of the hypergradient's norm, the largest at the observed points."""
        return max(at.bias_share for at in (self.at, *self.along))

    def __rich__(self) -> Group:
        table = Table(title="step sizes", title_justify="left")
        for column in ("", "inner α", "adjoint η", "outer β", "mean of ‖∇Φ‖² ≤"):
            table.add_column(column, justify="left" if not column else "right")
        table.add_row(
            "practical" if self.tried else "practical, untried", *_cells(self.practical), "not bounded"
        )
        for name, one in self.sampled.items():
            table.add_row(f"sampled, {name}", *_cells(one.sizes), f"{one.bound:.4g}")
        what = "gradient mapping" if self.projected else "∇Φ"
        at_start = (
            f"At the start: ‖{what}‖ = {self.at.hypergradient:.4g}, ITD's bias {self.at.bias:.4g}, "
            f"curvature of Φ up to {self.at.smoothness:.4g}, ‖∇_y g‖ = {self.at.inner_gradient:.2g}; "
            f"the adjoint system was solved to a relative residual of {self.at.residual:.1e}."
        )
        notes = [*self.notes, f"Constants {self.estimated}.", at_start]
        return Group(Text(self.recommendation), table, Text("\n".join(notes)))

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=100).print(self)
        return out.getvalue().rstrip()


def _cells(sizes: StepSizes) -> list[str]:
    return ["—" if size is None else f"{size:.4g}" for size in sizes]
