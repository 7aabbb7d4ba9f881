"""From the looks at a run to sentences about it: what stands out, by how much, and what to do about it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bilevel.loop.diagnose.context import FALLEN, Facts, Late
from bilevel.loop.diagnose.report import Finding
from bilevel.loop.diagnose.standstill import QUESTION, why_zero
from bilevel.solvers.adjoints.curvatures import Damped, GaussNewton
from bilevel.solvers.adjoints.gradient_steps import OneStep
from bilevel.solvers.adjoints.minimal_residuals import MinimalResiduals

SLOW = 0.05  # of 1/L: a step size that could be far larger
LAGS = 0.3  # relative error of the hypergradient from which on v or y is said to lag
BIASED = 0.1  # and that of an unrolled loop from which on its bias is mentioned
GROWS = 10.0  # the factor by which the inner residual must have grown
STILL = 1e-5  # of ‖x‖, or of the way it has come: x has stopped
GAIN = 1e-6  # of the outer value: so has an x that gains no more than that
TURNS = 1e-2  # of the hypergradient: an x that changes it by more moves
SILENT = 0.5  # of the numbers in y: so much of it f should depend on
ROUNDING = 1e-4  # of the largest curvature: a negative one below that is not believed
FROZEN = 1e-8  # and one below that is none: g does not depend on a part of y
FREEZE = " (A part of y behind a stop_gradient? Freeze it by the rule instead.)"


def findings(looks: dict[str, np.ndarray], facts: Facts) -> tuple[Finding, ...]:
    """What stands out; nothing if there was no look."""
    if not len(looks["step"]):
        return ()
    late = Late(looks)
    if facts.broke is not None:  # the status has judged it before it ran away; the last look is after that
        return (*_break(*facts.broke), *_curvature(late, facts), *_dead(looks, facts))
    causes = [*_curvature(late, facts), *_steps(late, facts)]
    found = [
        *_scale(facts),
        *_values(looks),
        *causes,
        *_hypergradient(late, facts),
        *(list(_growth(looks)) or _blow_up(looks, late, facts, causes)),
        *(list(_dead(looks, facts)) or [*_idle(facts), *_rest(looks, late, facts)]),
    ]
    return tuple(found)


def _scale(facts: Facts) -> Iterator[Finding]:
    if facts.scaled:
        yield Finding(
            "scale_free",
            f"{', '.join(facts.scaled)}: g depends on entries of it only through g's scale, and the inner rule is "
            "scale-free, as it divides gradients by their size (Adam and its like). So these entries do not change "
            "where y goes, and their hypergradient is meaningless: rounding, or the lag of y. Take optax.sgd for y, or "
            "let x enter g otherwise.",
        )


def _values(looks: dict[str, np.ndarray]) -> Iterator[Finding]:
    """Steps go by gradients, and those of a NaN may be finite."""
    values, gradients = (looks.get(name, np.zeros(0)) for name in ("inner_value", "inner_residual"))
    wrong = ~np.isfinite(values)
    if wrong.any() and np.isfinite(gradients[wrong]).all():
        yield Finding(
            "inner_nan",
            f"g is NaN or infinite at {wrong.sum()} of {len(wrong)} looks, though its gradient in y is not, by which "
            "all steps go: look at the data (a label that is no class, as with classes counted from 1?), and at terms "
            "without y.",
        )


def _curvature(late: Late, facts: Facts) -> Iterator[Finding]:
    mu, L = late["smallest_curvature"], late["largest_curvature"]
    if mu < -ROUNDING * L and not _allows(facts.solver.part("adjoint"), -mu):
        unsolved = "how far y and v lag" if facts.has_v else "the bias"
        yield Finding(
            "not_convex",
            f"the inner problem is not convex here: along some direction in y it curves by {mu:.2g}, against {L:.2g} "
            "at most. The hypergradient then belongs to no minimum, and conjugate gradients stop short"
            + (f", so that {unsolved} is not measured" if np.isnan(late["hypergradient_error"]) else "")
            + ": add a ridge to g"
            + (f", or damp the adjoint by more than that: {_damped(late, mu)}." if facts.has_v else "."),
        )
    turns = (facts.began + facts.steps) * facts.solver.inner_counts[0]  # also in earlier calls
    if np.isfinite(late["inner_distance"]) and -ROUNDING * L <= mu < L / turns:
        yield Finding(
            "flat",
            f"along some direction in y the inner problem curves by no more than {max(mu, 0):.2g}, so that κ is at "
            f"least {late['condition']:.2g}, and {turns} gradient steps hardly move y there: add a ridge to g, or take "
            f"more inner steps.{FREEZE if mu < FROZEN * L else ''}",
        )


def _allows(adjoint: Any, downwards: float) -> bool:
    """Whether it was made for curvature of that size below zero: what the finding would propose."""
    if isinstance(adjoint, Damped):
        return float(adjoint.damping) > downwards or _allows(adjoint.adjoint, downwards)
    return isinstance(adjoint, MinimalResiduals | GaussNewton)


def _damped(late: Late, mu: float) -> str:
    """An adjoint to copy; `mu` is never below the truth, and MINRES left alone may take ten steps a number in y."""
    size, L = late["adjoint_step"], late["largest_curvature"]
    kept = (
        size if SLOW < size * L < 2 or not size > 0 < L else 1 / L
    )  # one that is to be changed is not proposed again
    plain = f"{kept:.3g}" if kept * L > 0 else "adjoint"
    return f"bl.adjoints.damped({plain}, {-2 * mu:.1g}), or take bl.adjoints.minres(max_steps=20)"


def _break(cause: str, levels: tuple[str, ...]) -> Iterator[Finding]:
    for level in levels:
        yield Finding(f"{level}_step", cause)
    if not levels:
        yield Finding(
            "diverged",
            "the run broke, and its status says what to do. Step sizes and lags are not judged by these looks, the "
            "last of which is of a state that had run away.",
        )


def _steps(late: Late, facts: Facts) -> Iterator[Finding]:
    L = late["largest_curvature"]
    for level, moves in (("inner", "y"), ("adjoint", "v")):
        size = late[f"{level}_step"]
        if _too_large(late, level):
            yield Finding(
                f"{level}_step",
                f"the {level} step size {size:.3g} is above 2/L ≈ {2 / L:.3g}, with L ≈ {L:.3g} the largest curvature "
                f"of g in y at the later looks, in the median: there a step takes {moves} further away than it was. "
                f"Lower it to 1/L ≈ {1 / L:.3g}.",
            )
    beta, curved = late["outer_step"], late["outer_curvature"]
    if beta * curved > 2 and (facts.rise or not facts.noisy):  # where x runs away, noise hides little
        yield Finding(
            "outer_step",
            f"the outer step size {beta:.3g} is above 2/L_Φ ≈ {2 / curved:.3g}, with L_Φ ≈ {curved:.3g} from how much "
            f"the hypergradient changed between looks, which is crude: lower it below {1 / curved:.2g}.",
        )


def _too_large(late: Late, level: str) -> bool:
    return late[f"{level}_step"] * late["largest_curvature"] > 2


def _hypergradient(late: Late, facts: Facts) -> Iterator[Finding]:
    if late["implicit_hypergradient"] <= facts.small * facts.largest:
        return  # x is where it should be, and what is left of the hypergradient may be any share of it off
    error, behind = late["hypergradient_error"], late["inner_error"]
    off = f"{_share(error)} off the implicit one at the same y"
    if facts.has_v and error > LAGS and not (facts.noisy or _too_large(late, "adjoint")):
        yield Finding(
            "adjoint_lags",
            f"the adjoint lags: its residual is {late['adjoint_residual']:.2g} of ‖∇_y f‖, and the hypergradient "
            f"made with it {off}. {_sooner(late, 'adjoint', 'take more adjoint steps (bl.adjoints.steps, .cg)')}",
        )
    elif facts.has_v and (np.isnan(error) or facts.noisy) and (way := _way(late, facts)) < 0.5:
        yield Finding(
            "adjoint_lags",
            f"the adjoint has barely moved from its zero start: {facts.began + facts.steps} steps of "
            f"{late['adjoint_step']:.2g} cover at most {-np.expm1(-way):.1%} of its way, so the implicit term of the "
            f"hypergradient is mostly missing. Raise the adjoint step size toward 1/L ≈ "
            f"{1 / late['largest_curvature']:.2g}.",
        )
    elif not facts.has_v and error > BIASED:
        yield Finding(
            "biased", f"{facts.solver.name}'s hypergradient is {off}: {_more_steps(late, facts, error)}"
        )
    if behind > LAGS and not _too_large(late, "inner"):
        yield Finding(
            "y_lags",
            f"y lags x: it is about {late['inner_distance']:.2g} from y*(x), and for that the hypergradient is "
            f"{_share(behind)} off. {_sooner(late, 'inner', 'take more inner steps (inner_steps=)')}",
        )


def _way(late: Late, facts: Facts) -> float:
    """Return K·η·L, an upper bound on v's progress after K steps of η from v = 0; ∞ unless η·L is small."""
    rate = late["adjoint_step"] * late["largest_curvature"]
    one = isinstance(facts.solver.part("adjoint"), OneStep)
    return (facts.began + facts.steps) * rate if one and 0 < rate < SLOW else np.inf


def _sooner(late: Late, level: str, more: str) -> str:
    """How a level that lags catches up; with a slower x, at half of β = αμ/L_Φ, as secants are below L_Φ."""
    size, L, beta = late[f"{level}_step"], late["largest_curvature"], late["outer_step"]
    slower = 0.5 * size * late["smallest_curvature"] / late["outer_curvature"]
    to = f" to about {slower:.2g}" if 0 < slower < beta else ""
    if size * L < 0.5:
        return f"Raise the {level} step size {size:.3g} toward 1/L ≈ {1 / L:.3g}, {more}, or lower the outer step."
    return f"{more[0].upper()}{more[1:]}, or lower the outer step{to}."


def _more_steps(late: Late, facts: Facts, error: float) -> str:
    """A bias falls with every differentiated step by the larger of |1 − αμ| and |1 − αL|; those before add nothing.

    Where x comes to rest h is zero, and all of ∇Φ is bias: until ∇Φ has fallen to `FALLEN` of the largest h, bias must
    be no more than `BIASED` of it. All at the curvature seen here; where x goes it may be another one.
    """
    if facts.solver.traits.truncated_series:
        return "take more factors of its series (products=), or bl.aid, which has no bias."
    mu, L, (taken, now) = late["smallest_curvature"], late["largest_curvature"], facts.solver.inner_counts
    rate = max(abs(1 - late["inner_step"] * mu), abs(1 - late["inner_step"] * L))
    least, bias = BIASED * FALLEN * facts.largest, error * late["implicit_hypergradient"]
    take, where = ("differentiate", " (truncate=)") if now < taken else ("take", "")
    if mu > 0 and 0 < rate < 1 and 0 < least < bias and facts.solver.traits.unrolled:
        count = now + np.ceil(np.log(least / bias) / np.log(rate))
        return (
            f"{take} about {count:.0f} inner steps instead of {now}{where}, with which ∇Φ can fall to a thousandth of "
            "its size, or bl.aid, which has no bias."
        )
    return f"{take} more inner steps{where}, or bl.aid, which has no bias."


def _growth(looks: dict[str, np.ndarray]) -> Iterator[Finding]:
    """For rules without a step size that could be judged: what is seen."""
    known = looks.get("inner_step", np.array([np.nan]))
    seen = looks["inner_residual"]
    seen = seen[np.isfinite(seen)]
    if np.isnan(known[-1]) and len(seen) > 1 and seen[-1] > GROWS * seen[0] and seen[-1] >= seen.max():
        yield Finding(
            "inner_grows",
            f"the inner residual grows, from {seen[0]:.2g} at the first look to {seen[-1]:.2g} at the last: lower the "
            "inner learning rate, or the outer one.",
        )


def _blow_up(
    looks: dict[str, np.ndarray], late: Late, facts: Facts, causes: list[Finding]
) -> Iterator[Finding]:
    """f has grown by orders of magnitude, and nothing else that was found says why.

    Where f at y*(x) falls, it is y that has left a start at which f was small, and no step size is to blame.
    """
    solved = looks.get("solved_value", np.array([]))
    falls = not facts.noisy and len(solved) > 1 and solved[-1] <= solved[0]
    if facts.rise is None or falls or any(cause.code != "flat" for cause in causes):
        return
    beta, low = late["outer_step"], late["inner_step"] * late["largest_curvature"] <= 2
    of = "" if np.isnan(beta) else f" {beta:.3g}"
    yield Finding(
        "outer_grows",
        f"the outer value grows, from {facts.rise[0]:.2g} to {facts.rise[1]:.2g}: lower the outer step size{of}"
        + (", as the inner one is within its range." if low else ", and if that is no cure, the others."),
    )


def _dead(looks: dict[str, np.ndarray], facts: Facts) -> Iterator[Finding]:
    """Find gradients that are exactly zero here and a little aside: of a function that ignores its argument."""
    half = len(looks["step"]) // 2
    zero = lambda name: name in looks and not np.any(looks[name][half:])
    flat = [objective for objective, name in (("g", "inner_beside"), ("f", "outer_beside")) if zero(name)]
    if flat:
        yield Finding(
            "y_dead",
            f"{' and '.join(flat)} {'does' if len(flat) == 1 else 'do'} not depend on y any more: the gradient in y is "
            "exactly zero, and a little aside too, as where all ReLUs have died, a clip is at its end or y is not "
            "used. Start elsewhere, with smaller steps on y, or with activations that have a slope everywhere."
            + (
                " Of a hinge loss it says that all margins are met. An f whose value is 0 may underflow: multiply it "
                "by a large number."
                if flat == ["f"]
                else ""
            ),
        )
    elif (
        facts.broke is None
        and np.min(silent := looks.get("silent_beside", np.zeros(2 * half + 1))[half:]) > SILENT
    ):
        share = np.floor(1000 * np.min(silent)) / 10
        yield Finding(
            "y_dead",
            "f does not depend on most of y: its gradient is exactly zero, and a little aside too, throughout arrays "
            f"with {share:.3g} % of the numbers in y, as where a layer of ReLUs has died, a clip is at its end, or f "
            "does not use them. Start elsewhere, with smaller steps on y or inputs of size one, or with activations "
            "that have a slope everywhere.",
        )
    elif (
        (facts.blind and (zero("hypergradient_beside") or "hypergradient_beside" not in looks))
        or (
            facts.broke is None  # where x has run away, much is flat
            and zero("x_beside")
            and not (facts.noisy and np.any(looks["moved"][half + 1 :]))
        )
    ):
        # On minibatches an x that moves is one that the batches of these looks have no rows for.
        measured = "held" in looks and np.isfinite(looks["held"][-1])
        why = why_zero({name: column[-1] for name, column in looks.items()}) if measured else QUESTION
        yield Finding(
            "x_dead",
            f"the hypergradient is exactly zero{' at every step' if facts.blind else ''}, and a little aside too, so "
            f"that x cannot move. {why} Look for a stop_gradient, a rounding, a clip at its end, dead units, or a "
            "penalty that holds all of y at zero.",
        )


def _idle(facts: Facts) -> Iterator[Finding]:
    """Some arrays of x alone: where all are, x is dead."""
    if facts.idle:
        few, more = ", ".join(facts.idle[:5]), len(facts.idle) - 5
        seen = " on the batches of the looks" if facts.noisy else ""
        yield Finding(
            "x_unused",
            f"the hypergradient of {few}{f' and {more} more' if more > 0 else ''} is exactly zero at every look, and a "
            f"little aside too: neither f nor ∇_y g depends on it{seen}. A name that is not used, a term of g without "
            "y, a stop_gradient, or a clip at its end?",
        )


def _rest(looks: dict[str, np.ndarray], late: Late, facts: Facts) -> Iterator[Finding]:
    """x over the last fifth of the run at least."""
    at, moved = np.concatenate([[facts.began], looks["step"]]), looks["moved"]
    start = np.flatnonzero(at <= at[-1] - max(facts.steps / 5, 10))
    if not len(start):
        return
    start = int(start[-1])
    way, scale = moved[start:].sum(), max(looks["x_norm"][-1], np.nansum(moved))
    norm, beta, value = looks["stationarity"][-1], late["outer_step"], abs(looks["outer_value"][-1])
    gain = way * norm
    if facts.noisy and norm == 0:
        return  # a batch that says nothing about x
    if not (np.isfinite([way, scale, gain, value]).all() and (way <= STILL * scale or gain <= GAIN * value)):
        return
    still = (
        f"over the last {at[-1] - at[start]:.0f} steps x moved by {way:.2g} (‖x‖ = {looks['x_norm'][-1]:.3g})"
    )
    if norm <= facts.small * facts.largest and any(_too_large(late, level) for level in ("inner", "adjoint")):
        return  # the largest is what such steps made of it
    if facts.blind:
        yield Finding(
            "x_rests",
            "x rests where it began, where the hypergradient is exactly zero and a little aside it is not: fine where "
            "that is a solution; else start elsewhere.",
        )
    elif facts.largest == 0:  # of the stationarity measure
        yield Finding(
            "x_rests",
            "x rests where it began, as its projection or threshold has undone every step on it: fine where that is a "
            "solution; else start elsewhere.",
        )
    elif norm <= facts.small * facts.largest:
        yield Finding(
            "x_rests",
            f"x has come to rest: {still}, and the hypergradient has fallen from {facts.largest:.2g} to {norm:.2g}. "
            "The run could have ended earlier (tol=).",
        )
    elif norm > 10 * facts.small * facts.largest and not way * late["outer_curvature"] > TURNS * norm:
        # The second, as a value may be large by a constant alone.
        of = "" if np.isnan(beta) else f" {beta:.2g}"
        yield Finding(
            "x_still",
            f"x has stopped moving though the hypergradient has not fallen: {still}, with {norm:.2g} left of "
            f"{facts.largest:.2g}. {_late_adjoint(late)}The outer step size{of} is too small for a hypergradient of "
            "that size, or its schedule has ended: raise it.",
        )


def _late_adjoint(late: Late) -> str:
    """Where v has hardly set out the hypergradient is small for that, and a larger outer step no cure."""
    size, L, left = late["adjoint_step"], late["largest_curvature"], late["adjoint_residual"]
    if not (size * L < 0.5 and left > 0.5):
        return ""
    return (
        f"It may be small because v lags, with a residual of {left:.2g} of ‖∇_y f‖: first raise the adjoint step size "
        f"{size:.2g} toward 1/L ≈ {1 / L:.2g}, and the inner one. Else: "
    )


def _share(error: float) -> str:
    return f"{error:.0%}" if error < 10 else f"{error:.2g} times its size"
