"""What advice has to say about itself: what was looked at, what that is worth, and what did not work."""

from bilevel.theory.estimation.estimated import Estimated
from bilevel.theory.estimation.exploring import Explored
from bilevel.theory.estimation.sampling import Sampled
from bilevel.theory.estimation.starting import Beginning, is_convex
from bilevel.theory.estimation.trial import MOST_HALVINGS, Tried


def explain(
    here: Beginning,
    tried: Tried,
    trial: int,
    runs: dict[str, Explored],
    estimated: Estimated,
    sampled: dict[str, Sampled],
    infimum: float,
    projected: bool,
) -> tuple[str, ...]:
    """The notes of an advice, failures first."""
    notes = []
    if here.convex and not here.star.done:
        notes.append(
            f"y*(x0) was not found: ‖∇_y g‖ = {float(here.star.gradient):.2g} is left. All of this is rough."
        )
    if trial and not tried.passed:
        notes.append(
            f"No outer step passed its trial: after {MOST_HALVINGS} halvings of β = {tried.beta:.3g} the estimate "
            f"still changed by more than 2αμ/β times the step of x within {trial} steps. The practical β is that first "
            "proposal, untried: sweep around it."
        )
    if not trial:
        notes.append("Nothing was run (trial=0), so the practical β is untried.")
    if "AID" in runs and runs["AID"].beta < tried.beta:
        notes.append(
            f"From (x0, y0) itself, where y and v have not settled, AID stayed finite for {runs['AID'].steps} steps "
            f"with β = {runs['AID'].beta:.3g} and not with twice that: this is the practical β."
        )
    if sampled:
        notes.append(_worth(runs, estimated, sampled, infimum))
    elif reason := _reason(here, tried, trial, runs, estimated, projected):
        notes.append(f"No certificate is offered: {reason}.")
    return tuple(notes)


def _worth(
    runs: dict[str, Explored], estimated: Estimated, sampled: dict[str, Sampled], infimum: float
) -> str:
    steps = next(iter(sampled.values())).steps
    told = " and ".join(f"{run.steps} steps of {name} with β = {run.beta:.3g}" for name, run in runs.items())
    farthest = max(one.sizes.outer for one in sampled.values()) * steps
    reach = min(run.steps * run.beta for run in runs.values()) / farthest
    far = "which go as far as any of these" if reach >= 1 else f"which go {reach:.0%} as far"
    return (
        f"Sampled: with these steps from (x0, y0) and v = 0, the mean of ‖∇Φ‖² over {steps} steps is at most the bound "
        f"if f ≥ {infimum:g} and the constants below hold wherever the run goes. They are the worst of "
        f"{estimated.points} points: the start, the way of y to y*(x0), and {told}, {far}; y*(x) and the middle "
        "between y and y*(x) included. No sample proves a constant: for a certificate declare constants that are "
        "known to hold, as in theory.star.aid(theory.Blocks(...))."
    )


def _reason(
    here: Beginning,
    tried: Tried,
    trial: int,
    runs: dict[str, Explored],
    estimated: Estimated,
    projected: bool,
) -> str:
    if not here.convex:
        return ""  # the recommendation says so
    if not trial:
        return "none is without a run along which the constants were seen"
    if projected:
        return "none here covers a projected x"
    if not here.star.done:
        return "its start needs y*(x0)"
    if not tried.passed:
        return "∇Φ changes faster along the trial than its curvature at the start explains"
    if not runs:
        return f"no run from (x0, y0) stays finite, even with a thousandth of β = {here.proposal:.3g}"
    if not is_convex(estimated):
        return f"along the practical runs g has curvature {estimated.mu_at_most:.3g} in y, so it is not strongly convex"
    return ""
