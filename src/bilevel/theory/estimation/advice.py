"""Answer of `advise`, its printed form, and its texts: AID or ITD and the reason, and the notes."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bilevel.theory.certificates.certificate import StepSizes
from bilevel.theory.estimation.estimates import Estimated, Sampled
from bilevel.theory.estimation.stationarity import Stationarity
from bilevel.theory.estimation.trial_runs import MOST_HALVINGS, BetaTrial, StartPoint, TrialRun, is_convex

TOLERATED_BIAS = 0.1  # as a share of ‖∇Φ‖: up to here ITD's cheaper step is worth its bias


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


def recommend(
    start: StartPoint, along: Sequence[Stationarity], ends: dict[str, Stationarity], runs: dict[str, TrialRun]
) -> tuple[str, str]:
    """Return the method and the reason, from ITD's bias at the start and `along` AID's run, and the `ends`."""
    share = max(at.bias_share for at in along)
    kappa = 1 / (start.alpha * start.mu)
    rough = max(float(at.residual) for at in along)
    loose = f" (roughly: an adjoint system was solved only to {rough:.1e})" if rough > 1e-3 else ""
    where = "at the start" if len(along) == 1 else f"at the {len(along)} observed points of a run"
    size = f"up to {share:.1%} of ‖∇Φ‖" if share <= 1 else "larger than ‖∇Φ‖ itself"
    seen = f"ITD's bias is {size} {where}{loose}"
    if ends:
        each = [f"{runs[m].steps} steps of {m} end at {at.hypergradient:.3g}" for m, at in ends.items()]
        seen += f"; from ‖∇Φ‖ = {start.at.hypergradient:.3g}, {' and '.join(each)}"
    if share <= TOLERATED_BIAS:
        products = "It takes one second-order product per step where AID takes two"
        return "ITD", f"Use ITD: {seen}. {products} (κ ≈ {kappa:.3g})."
    bias = "More steps do not remove a bias: where ITD converges, ‖∇Φ‖ equals the bias there"
    return "AID", f"Use AID: {seen}. {bias} (κ ≈ {kappa:.3g})."


def recommend_nonconvex(start: StartPoint, estimated: Estimated) -> tuple[str, str]:
    """Return the method and the reason, where g is not strongly convex in y."""
    growth = 1 + start.alpha * max(-estimated.mu_at_most, 0)
    return "ITD", (
        "Use ITD with the practical step sizes, or AID on a damped inner problem: g is not strongly convex in y "
        f"here (curvature {estimated.mu_at_most:.3g} was found), so y*(x) need not be unique, no certificate "
        f"applies, and AID's adjoint would grow by up to {growth:.4g} per "
        f"step; adding ½·{start.damping:.3g}·‖y‖² to g repairs this near the point, and ITD's bias would then be "
        f"{start.at.bias_share:.1%} of ‖∇Φ‖."
    )


def explain(
    start: StartPoint,
    tried: BetaTrial,
    trial: int,
    runs: dict[str, TrialRun],
    estimated: Estimated,
    sampled: dict[str, Sampled],
    infimum: float,
    projected: bool,
) -> tuple[str, ...]:
    """Return the notes of an advice, failures first."""
    notes = []
    if start.convex and not start.star.done:
        notes.append(
            f"y*(x0) was not found: ‖∇_y g‖ = {float(start.star.gradient):.2g} remains. All numbers are rough."
        )
    if trial and not tried.passed:
        notes.append(
            f"No outer step passed its trial: after {MOST_HALVINGS} halvings of β = {tried.beta:.3g} the estimate "
            f"still changed by more than 2αμ/β times the step of x within {trial} steps. The practical β is that first "
            "proposal, untried: sweep around it."
        )
    if not trial:
        notes.append("No trial was run (trial=0), so the practical β is untried.")
    if "AID" in runs and runs["AID"].beta < tried.beta:
        notes.append(
            f"From (x0, y0), where y and v have not converged, AID was finite for {runs['AID'].steps} steps "
            f"with β = {runs['AID'].beta:.3g} and not with twice that: this is the practical β."
        )
    curvature = f"along the practical runs g has curvature {estimated.mu_at_most:.3g} in y"
    none_finite = f"no run from (x0, y0) is finite, even with a thousandth of β = {start.proposal:.3g}"
    missing = {
        "its constants need a run along which they are observed": not trial,
        "none covers a projected x": projected,
        "its start needs y*(x0)": not start.star.done,
        "∇Φ changes faster along the trial than its curvature at the start explains": not tried.passed,
        none_finite: not runs,
        f"{curvature}, so it is not strongly convex": not is_convex(estimated),
    }
    if sampled:
        notes.append(_scope(runs, estimated, sampled, infimum))
    elif start.convex and any(missing.values()):  # without convexity the recommendation has the reason
        reason = next(reason for reason, holds in missing.items() if holds)
        notes.append(f"No certificate is offered: {reason}.")
    return tuple(notes)


def _scope(
    runs: dict[str, TrialRun], estimated: Estimated, sampled: dict[str, Sampled], infimum: float
) -> str:
    steps = next(iter(sampled.values())).steps
    each = " and ".join(f"{run.steps} steps of {name} with β = {run.beta:.3g}" for name, run in runs.items())
    farthest = max(one.sizes.outer for one in sampled.values()) * steps
    reach = min(run.steps * run.beta for run in runs.values()) / farthest
    far = "which go as far as any of these" if reach >= 1 else f"which go {reach:.0%} as far"
    return (
        f"Sampled: with these steps from (x0, y0) and v = 0, the mean of ‖∇Φ‖² over {steps} steps is at most the bound "
        f"if f ≥ {infimum:g} and the constants below hold along the whole run. They are the worst of "
        f"{estimated.points} points: the start, the way of y to y*(x0), and {each}, {far}; y*(x) and the middle "
        "between y and y*(x) included. No sample proves a constant: for a certificate declare constants that are "
        "known to hold, as in theory.star.aid(theory.Blocks(...))."
    )
