"""What `advise` answers, and how it is printed."""

import io
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bilevel.theory.certificates.certificate import StepSizes
from bilevel.theory.estimation.estimated import Estimated
from bilevel.theory.estimation.local import Local
from bilevel.theory.estimation.sampling import Sampled


@dataclass(frozen=True)
class Advice:
    """What `bl.advise` found out along a run from a start, and what it recommends."""

    estimated: Estimated  # the worst of all points looked at
    sampled: dict[
        str, Sampled
    ]  # by certificate: what holds if the constants do; `notes` says why if there is none
    practical: StepSizes
    tried: bool  # whether the practical β passed its trial
    damping: float  # added to ∇²_yy g wherever it was inverted; 0 if g is strongly convex at the points seen
    at: Local  # hypergradient, ITD's bias and the curvature of Φ at (x0, y*(x0))
    along: tuple[Local, ...]  # the same at points of AID's run; its curvature of Φ is that of the start
    method: str  # "AID" or "ITD"
    recommendation: str
    notes: tuple[str, ...] = ()  # what was looked at, and everything that did not work
    projected: bool = False  # ‖∇Φ‖ is then the norm of the gradient mapping

    @property
    def bias_share(self) -> float:
        """ITD's bias as a share of the hypergradient's norm: the largest at the points looked at."""
        return max(at.bias_share for at in (self.at, *self.along))

    def __rich__(self) -> Group:
        table = Table(title="step sizes", title_justify="left")
        for column in ("", "inner α", "adjoint η", "outer β", "mean of ‖∇Φ‖² ≤"):
            table.add_column(column, justify="left" if not column else "right")
        table.add_row(
            "practical" if self.tried else "practical, untried", *_told(self.practical), "not bounded"
        )
        for name, one in self.sampled.items():
            table.add_row(f"sampled, {name}", *_told(one.sizes), f"{one.bound:.4g}")
        return Group(Text(self.recommendation), table, Text("\n".join(self._notes())))

    def _notes(self) -> list[str]:
        what = "gradient mapping" if self.projected else "∇Φ"
        at_start = (
            f"At the start: ‖{what}‖ = {self.at.hypergradient:.4g}, ITD's bias {self.at.bias:.4g}, "
            f"curvature of Φ up to {self.at.smoothness:.4g}, ‖∇_y g‖ = {self.at.inner_gradient:.2g}; "
            f"the adjoint system was solved to a relative residual of {self.at.residual:.1e}."
        )
        return [*self.notes, f"Constants {self.estimated}.", at_start]

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=100).print(self)
        return out.getvalue().rstrip()


def _told(sizes: StepSizes) -> list[str]:
    return ["—" if size is None else f"{size:.4g}" for size in sizes]
