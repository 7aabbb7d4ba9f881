"""Findings from the looks at a run: notable facts, the most important first."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bilevel.loop.diagnose import messages
from bilevel.loop.diagnose.evidence import Facts, Late, Looks
from bilevel.loop.diagnose.messages import say, share
from bilevel.loop.diagnose.report import Finding
from bilevel.loop.diagnose.standstill import FALLEN

SLOW = 0.05  # of 1/L: a step size that could be far larger
LAGS = 0.3  # relative error of the hypergradient above which v or y lags
BIASED = 0.1  # relative error above which the bias of an unrolled loop is reported
GROWS = 10.0  # the factor by which the inner residual must have grown
STILL = 1e-5  # of ‖x‖, or of the way so far: x has stopped
GAIN = 1e-6  # of the outer value: an x that gains no more has stopped too
TURNS = 1e-2  # of the hypergradient: an x that changes it by more moves
SILENT = 0.5  # of the numbers in y: f should depend on so many
ROUNDING = 1e-4  # of the largest curvature: a negative one below that may be rounding
FROZEN = 1e-8  # of the largest curvature: below that, g does not depend on a part of y

Findings = Iterator[Finding]


def findings(looks: Looks, facts: Facts) -> tuple[Finding, ...]:
    """Return the notable facts; none if there was no look."""
    if not len(looks["step"]):
        return ()
    late = Late(looks)
    if facts.broke is not None:  # the status has already judged it; the last look came after it ran away
        return (*_divergence(*facts.broke), *_curvature(late, facts), *_dead(looks, facts))
    causes = [*_curvature(late, facts), *_steps(late, facts)]
    return (
        *_scale(facts),
        *_values(looks),
        *causes,
        *_hypergradient(late, facts),
        *(list(_growth(looks)) or _blow_up(looks, late, facts, causes)),
        *(list(_dead(looks, facts)) or [*_idle(facts), *_rest(looks, late, facts)]),
    )


def _finding(code: str, sentence: str = "", **numbers: Any) -> Finding:
    """Return a finding, whose sentence may have another code."""
    return Finding(code, say(sentence or code, **numbers))


def _scale(facts: Facts) -> Findings:
    if facts.scaled:
        yield _finding("scale_free", names=", ".join(facts.scaled))


def _values(looks: Looks) -> Findings:
    """Find values that are NaN although the gradients for the steps are finite."""
    values, gradients = (looks.get(name, np.zeros(0)) for name in ("inner_value", "inner_residual"))
    wrong = ~np.isfinite(values)
    if wrong.any() and np.isfinite(gradients[wrong]).all():
        yield _finding("inner_nan", bad=wrong.sum(), looks=len(wrong))


def _curvature(late: Late, facts: Facts) -> Findings:
    mu, L = late["smallest_curvature"], late["largest_curvature"]
    if mu < -ROUNDING * L and not (facts.adjoint is not None and facts.adjoint.allows(mu)):
        unsolved = (
            ", so how far y and v lag is not measured" if facts.has_v else ", so the bias is not measured"
        )
        yield _finding(
            "not_convex",
            mu=mu,
            L=L,
            unmeasured=unsolved if np.isnan(late["hypergradient_error"]) else "",
            damping=f", or damp the adjoint by more than that: {_damped(late, mu)}" if facts.has_v else "",
        )
    turns = facts.taken * facts.solver.inner_counts[0]
    if np.isfinite(late["inner_distance"]) and -ROUNDING * L <= mu < L / turns:
        freeze = messages.FREEZE if mu < FROZEN * L else ""
        yield _finding("flat", mu=max(mu, 0), condition=late["condition"], steps=turns, freeze=freeze)


def _damped(late: Late, mu: float) -> str:
    """Return an adjoint to copy. Its `mu` is an upper bound; MINRES may take ten steps per number in y."""
    size, L = late["adjoint_step"], late["largest_curvature"]
    # Do not propose a step size that must change.
    kept = size if SLOW < size * L < 2 or not size > 0 < L else 1 / L
    plain = f"{kept:.3g}" if kept * L > 0 else "adjoint"
    return f"bl.adjoints.damped({plain}, {-2 * mu:.1g}), or take bl.adjoints.minres(max_steps=20)"


def _divergence(cause: str, levels: tuple[str, ...]) -> Findings:
    yield from (Finding(f"{level}_step", cause) for level in levels)
    if not levels:
        yield _finding("diverged")


def _steps(late: Late, facts: Facts) -> Findings:
    L = late["largest_curvature"]
    for level in ("inner", "adjoint"):
        if late.is_too_large(level):
            sentence = messages.large_step(
                {level: late[f"{level}_step"]}, L, "at the later looks, in the median"
            )
            yield Finding(f"{level}_step", sentence)
    beta, curved = late["outer_step"], late["outer_curvature"]
    if beta * curved > 2 and (facts.rise or not facts.noisy):  # if x runs away, noise hides little
        yield _finding("outer_step", size=beta, limit=2 / curved, L=curved, best=1 / curved)


def _hypergradient(late: Late, facts: Facts) -> Findings:
    if late["implicit_hypergradient"] <= facts.small * facts.largest:
        return  # x has converged, and the remaining hypergradient may be rounding
    error, behind = late["hypergradient_error"], late["inner_error"]
    if facts.has_v and error > LAGS and not (facts.noisy or late.is_too_large("adjoint")):
        remedy = _sooner(late, "adjoint", "take more adjoint steps (bl.adjoints.steps, .cg)")
        yield _finding("adjoint_lags", residual=late["adjoint_residual"], error=share(error), remedy=remedy)
    elif facts.has_v and (np.isnan(error) or facts.noisy) and (way := _way(late, facts)) < 0.5:
        yield _finding(
            "adjoint_lags",
            "adjoint_barely_moved",
            steps=facts.taken,
            size=late["adjoint_step"],
            way=-np.expm1(-way),
            best=1 / late["largest_curvature"],
        )
    elif not facts.has_v and error > BIASED:
        remedy = _more_steps(late, facts, error)
        yield _finding("biased", name=facts.solver.name, error=share(error), remedy=remedy)
    if behind > LAGS and not late.is_too_large("inner"):
        remedy = _sooner(late, "inner", "take more inner steps (inner_steps=)")
        yield _finding("y_lags", distance=late["inner_distance"], error=share(behind), remedy=remedy)


def _way(late: Late, facts: Facts) -> float:
    """Return K·η·L, an upper bound on v's progress after K steps of η from v = 0; ∞ unless η·L is small."""
    rate = late["adjoint_step"] * late["largest_curvature"]
    steps = 0 if facts.adjoint is None else facts.adjoint.warm_steps
    return facts.taken * steps * rate if steps and 0 < rate < SLOW else np.inf


def _sooner(late: Late, level: str, more: str) -> str:
    """Return a remedy for a level that lags. A slower x takes half of β = αμ/L_Φ: secants are below L_Φ."""
    size, L, beta = late[f"{level}_step"], late["largest_curvature"], late["outer_step"]
    slower = 0.5 * size * late["smallest_curvature"] / late["outer_curvature"]
    to = f" to about {slower:.2g}" if 0 < slower < beta else ""
    if size * L < 0.5:
        return say("raise_step", level=level, size=size, best=1 / L, more=more)
    return f"{more[0].upper()}{more[1:]}, or lower the outer step{to}."


def _more_steps(late: Late, facts: Facts, error: float) -> str:
    """Return how to reduce a bias, with the number of inner steps if it is known.

    Every differentiated step reduces a bias by the factor max(|1 − αμ|, |1 − αL|). Earlier steps add nothing.
    At a fixed point of x, h is zero and all of ∇Φ is bias: when ∇Φ has fallen to `FALLEN` of the largest h,
    the bias must be at most `BIASED` of it. The curvature is the measured one; it may change with x.
    """
    traits, (taken, now) = facts.solver.traits, facts.solver.inner_counts
    if traits.truncated_series:
        return "take more factors of its series (products=)"
    mu, L = late["smallest_curvature"], late["largest_curvature"]
    rate = max(abs(1 - late["inner_step"] * mu), abs(1 - late["inner_step"] * L))
    least, bias = BIASED * FALLEN * facts.largest, error * late["implicit_hypergradient"]
    verb, where = ("differentiate", " (truncate=)") if now < taken else ("take", "")
    if mu > 0 and 0 < rate < 1 and 0 < least < bias and traits.unrolled:
        count = now + np.ceil(np.log(least / bias) / np.log(rate))
        return say("enough_steps", verb=verb, count=count, now=now, where=where)
    return f"{verb} more inner steps{where}"


def _growth(looks: Looks) -> Findings:
    """Find inner residuals that grow under rules without a step size, which cannot be judged otherwise."""
    known = looks.get("inner_step", np.array([np.nan]))
    seen = looks["inner_residual"]
    seen = seen[np.isfinite(seen)]
    if np.isnan(known[-1]) and len(seen) > 1 and seen[-1] > GROWS * seen[0] and seen[-1] >= seen.max():
        yield _finding("inner_grows", first=seen[0], last=seen[-1])


def _blow_up(looks: Looks, late: Late, facts: Facts, causes: list[Finding]) -> Findings:
    """Find an f that has grown by orders of magnitude for an unknown reason.

    If f at y*(x) falls, y has left a start where f was small, and the step sizes are fine.
    """
    solved = looks.get("solved_value", np.array([]))
    falls = not facts.noisy and len(solved) > 1 and solved[-1] <= solved[0]
    if facts.rise is None or falls or any(cause.code != "flat" for cause in causes):
        return
    fits = late["inner_step"] * late["largest_curvature"] <= 2
    others = ", as the inner one is within its range" if fits else ", and if that does not help, the others"
    start, end = facts.rise
    yield _finding("outer_grows", start=start, end=end, of=_of(late["outer_step"], "{:.3g}"), others=others)


def _of(size: float, form: str) -> str:
    return "" if np.isnan(size) else f" {form.format(size)}"


def _dead(looks: Looks, facts: Facts) -> Findings:
    """Find gradients that are exactly zero, also nearby: the function ignores its argument."""
    half = len(looks["step"]) // 2
    zero = lambda name: name in looks and not np.any(looks[name][half:])
    flat = [objective for objective, name in (("g", "inner_beside"), ("f", "outer_beside")) if zero(name)]
    silent = np.min(looks["silent_beside"][half:]) if "silent_beside" in looks else 0.0
    # On minibatches, an x that moves may have no rows in these batches. An x that has run away is often flat.
    moved = facts.noisy and np.any(looks.get("moved", np.zeros(0))[half + 1 :])
    blind = facts.blind and (zero("hypergradient_beside") or "hypergradient_beside" not in looks)
    if flat:
        objectives = "g and f do" if flat[1:] else f"{flat[0]} does"
        yield _finding("y_dead", objectives=objectives, hinge=messages.HINGE if flat == ["f"] else "")
    elif facts.broke is None and silent > SILENT:
        yield _finding("y_dead", "y_mostly_dead", percent=np.floor(1000 * silent) / 10)
    elif blind or (facts.broke is None and zero("x_beside") and not moved):
        measured = "held" in looks and np.isfinite(looks["held"][-1])
        last = {name: column[-1] for name, column in looks.items()}
        why = messages.why_zero(last) if measured else messages.DEPENDS
        yield _finding("x_dead", when=" at every step" if facts.blind else "", why=why)


def _idle(facts: Facts) -> Findings:
    """Find arrays of x without effect. If all have none, x is dead."""
    if facts.idle:
        more = f" and {len(facts.idle) - 5} more" if facts.idle[5:] else ""
        batches = " on the batches of the looks" if facts.noisy else ""
        yield _finding("x_unused", names=", ".join(facts.idle[:5]) + more, batches=batches)


def _rest(looks: Looks, late: Late, facts: Facts) -> Findings:
    """Find an x that has stopped, by its steps over at least the last fifth of the run."""
    at, moved = np.concatenate([[facts.began], looks["step"]]), looks["moved"]
    start = np.flatnonzero(at <= at[-1] - max(facts.steps / 5, 10))
    if not len(start):
        return
    start = int(start[-1])
    way, scale = moved[start:].sum(), max(looks["x_norm"][-1], np.nansum(moved))
    norm, value = looks["stationarity"][-1], abs(looks["outer_value"][-1])
    gain = way * norm
    if facts.noisy and norm == 0:
        return  # the batch has no rows for x
    if not (np.isfinite([way, scale, gain, value]).all() and (way <= STILL * scale or gain <= GAIN * value)):
        return
    has_fallen = norm <= facts.small * facts.largest
    if has_fallen and (late.is_too_large("inner") or late.is_too_large("adjoint")):
        return  # such steps made the largest
    over = f"over the last {at[-1] - at[start]:.0f} steps"
    path = f"{over} x moved by {way:.2g} (‖x‖ = {looks['x_norm'][-1]:.3g})"
    if facts.blind:
        yield _finding("x_rests", "x_started_stationary")
    elif facts.largest == 0:  # of the stationarity measure
        yield _finding("x_rests", "x_held")
    elif has_fallen:
        yield _finding("x_rests", moved=path, largest=facts.largest, norm=norm)
    elif norm > 10 * facts.small * facts.largest and not way * late["outer_curvature"] > TURNS * norm:
        # The second condition is needed because a value may contain a large constant.
        of = _of(late["outer_step"], "{:.2g}")
        lag = _late_adjoint(late)
        yield _finding("x_still", moved=path, norm=norm, largest=facts.largest, lag=lag, of=of)


def _late_adjoint(late: Late) -> str:
    """Report a v that has hardly moved. The hypergradient is then small; a larger outer step is no remedy."""
    size, L, left = late["adjoint_step"], late["largest_curvature"], late["adjoint_residual"]
    return say("late_adjoint", residual=left, size=size, best=1 / L) if size * L < 0.5 and left > 0.5 else ""
