"""AID or ITD: ITD's bias against ‖∇Φ‖, at the start and along a run, because the share grows as ‖∇Φ‖ shrinks."""

from collections.abc import Sequence
from typing import NamedTuple

from bilevel.theory.estimation.estimated import Estimated
from bilevel.theory.estimation.exploring import Explored
from bilevel.theory.estimation.local import Local
from bilevel.theory.estimation.starting import Beginning

TOLERATED_BIAS = 0.1  # of ‖∇Φ‖: up to here ITD's cheaper step is worth its bias


class Recommended(NamedTuple):
    method: str
    why: str


def recommend(
    here: Beginning, along: Sequence[Local], ends: dict[str, Local], runs: dict[str, Explored]
) -> Recommended:
    """From what was seen at the start and `along` AID's run, and from ‖∇Φ‖ where the run of each method ends."""
    share = max(at.bias_share for at in along)
    kappa = 1 / (here.alpha * here.mu)
    rough = max(float(at.residual) for at in along)
    loose = f" (an adjoint system was only solved to {rough:.1e}, so this is rough)" if rough > 1e-3 else ""
    where = "at the start" if len(along) == 1 else f"at the {len(along)} points of a run that were looked at"
    size = f"up to {share:.1%} of ‖∇Φ‖" if share <= 1 else "larger than ‖∇Φ‖ itself"
    seen = f"ITD's bias is {size} {where}{loose}"
    if ends:
        told = [f"{runs[m].steps} steps of {m} end at {at.hypergradient:.3g}" for m, at in ends.items()]
        seen += f"; from ‖∇Φ‖ = {here.at.hypergradient:.3g}, {' and '.join(told)}"
    if share <= TOLERATED_BIAS:
        return Recommended(
            "ITD",
            f"Use ITD: {seen}. It takes one second-order product per step where AID takes two (κ ≈ {kappa:.3g}).",
        )
    return Recommended(
        "AID",
        f"Use AID: {seen}. A bias does not go away with more steps: where ITD rests, ‖∇Φ‖ is the bias there "
        f"(κ ≈ {kappa:.3g}).",
    )


def without_convexity(here: Beginning, estimated: Estimated) -> Recommended:
    """Where g is not strongly convex in y."""
    growth = 1 + here.alpha * max(-estimated.mu_at_most, 0)
    return Recommended(
        "ITD",
        "Use ITD with the practical step sizes, or AID on a damped inner problem: g is not strongly convex in y "
        f"here (curvature {estimated.mu_at_most:.3g} was found), so y*(x) need not be unique, no certificate "
        f"applies, and AID's adjoint would grow by up to {growth:.4g} per "
        f"step; adding ½·{here.damping:.3g}·‖y‖² to g repairs this near the point, and ITD's bias would then be "
        f"{here.at.bias_share:.1%} of ‖∇Φ‖.",
    )
