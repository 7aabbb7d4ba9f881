"""Text of an advice: AID or ITD and the reason, the observations, and the failures."""

from collections.abc import Sequence

from bilevel.theory.estimation.estimates import Estimated
from bilevel.theory.estimation.sampled import Sampled
from bilevel.theory.estimation.start_point import StartPoint, is_convex
from bilevel.theory.estimation.stationarity import Stationarity
from bilevel.theory.estimation.trial_runs import MOST_HALVINGS, BetaTrial, TrialRun

TOLERATED_BIAS = 0.1  # as a share of ‖∇Φ‖: up to here ITD's cheaper step is worth its bias


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
    if sampled:
        notes.append(_scope(runs, estimated, sampled, infimum))
    elif start.convex and (reason := _missing(start, tried, trial, runs, estimated, projected)):
        notes.append(
            f"No certificate is offered: {reason}."
        )  # without convexity the recommendation has the reason
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


def _missing(
    start: StartPoint,
    tried: BetaTrial,
    trial: int,
    runs: dict[str, TrialRun],
    estimated: Estimated,
    projected: bool,
) -> str:
    if not trial:
        return "its constants need a run along which they are observed"
    if projected:
        return "none covers a projected x"
    if not start.star.done:
        return "its start needs y*(x0)"
    if not tried.passed:
        return "∇Φ changes faster along the trial than its curvature at the start explains"
    if not runs:
        return f"no run from (x0, y0) is finite, even with a thousandth of β = {start.proposal:.3g}"
    if not is_convex(estimated):
        return f"along the practical runs g has curvature {estimated.mu_at_most:.3g} in y, so it is not strongly convex"
    return ""
