"""Findings from the looks at a run: notable facts, the most important first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bilevel.loop.diagnose.messages import DEPENDS, FREEZE, HINGE, large_step, say, share, why_zero
from bilevel.loop.diagnose.report import Finding
from bilevel.loop.diagnose.standstill import FALLEN
from bilevel.loop.finite import NORM, largest_measure
from bilevel.solvers.adjoints.base import Adjoint
from bilevel.solvers.base import Solver

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


@dataclass
class Record:
    """Observations of a run, which a checkpoint keeps."""

    rows: list[dict[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    began: int = 0  # the step before the first one that was looked at
    spent: float = 0.0  # on the looks, in steps
    largest: float = 0.0  # stationarity measure of any step
    steepest: float = 0.0  # hypergradient of any step
    broke: tuple[str, tuple[str, ...]] | None = None  # of a run that diverged: the cause, and the levels
    moves: list[bool] = field(
        default_factory=list
    )  # whether each array of x ever had a nonzero hypergradient
    scaled: list[str] = field(default_factory=list)  # arrays of x that only scale g, under a scale-free rule

    def note_norms(self, trace: dict[str, Any]) -> None:
        self.steepest = max(self.steepest, largest_measure({NORM: trace[NORM]}))
        self.largest = max(self.largest, largest_measure(trace))

    def note_moves(self, seen: Any) -> None:
        self.moves = np.logical_or(self.moves, seen).tolist()


@dataclass
class Evidence:
    """Looks at a run, by column with one row per look, and other facts for the findings.

    `seen[name]` is the median of a column's second half; NaN if nothing was measured. A secant is a lower
    bound, so it is the largest one of that half, or of all looks if the half has none.
    """

    solver: Solver
    looks: dict[str, np.ndarray]
    record: Record
    names: Sequence[str] = ()  # of the arrays of x
    small: float = FALLEN  # the share of the largest stationarity measure below which x has converged
    rise: tuple[float, float] | None = None  # of f, from where to where, if it has blown up

    def __post_init__(self) -> None:
        self.largest, self.broke = self.record.largest, self.record.broke
        self.blind: bool = (
            self.record.steepest == 0
        )  # whether the hypergradient was exactly zero at every step
        self.taken: int = int(self.looks["step"][-1])  # steps, also in earlier calls
        self.noisy: bool = bool(self.column("noisy")[-1] == 1)  # minibatches, or objectives with random keys
        self.has_v: bool = "v" in self.solver.variables
        part = self.solver.part("adjoint")
        self.adjoint: Adjoint | None = part if isinstance(part, Adjoint) else None
        self.alpha, self.eta, self.beta = (self[f"{level}_step"] for level in ("inner", "adjoint", "outer"))
        self.mu, self.L, self.L_phi = (
            self[f"{which}_curvature"] for which in ("smallest", "largest", "outer")
        )

    def column(self, name: str) -> np.ndarray:
        return self.looks.get(name, np.full(len(self.looks["step"]), np.nan))

    def __getitem__(self, name: str) -> float:
        values, secants = self.column(name), name == "outer_curvature"
        late = values[len(values) // 2 :]
        late = values if secants and not np.isfinite(late).any() else late
        late = late[np.isfinite(late)]
        typical = np.max if secants else np.median
        return float(typical(late)) if len(late) else np.nan


def findings(seen: Evidence) -> tuple[Finding, ...]:
    """Return the notable facts."""
    if seen.broke is not None:  # the status has already judged it; the last look came after it ran away
        cause, levels = seen.broke
        broken = [Finding(f"{level}_step", cause) for level in levels] or [_finding("diverged")]
        return (*broken, *_curvature(seen), *_dead(seen))
    causes = [*_curvature(seen), *_steps(seen)]
    return (
        *_values(seen),
        *causes,
        *_hypergradient(seen),
        *(list(_growth(seen)) or _blow_up(seen, causes)),
        *(list(_dead(seen)) or [*_idle(seen), *_rest(seen)]),
    )


def _finding(code: str, sentence: str = "", **numbers: Any) -> Finding:
    """Return a finding. Its sentence may have another code."""
    return Finding(code, say(sentence or code, **numbers))


def _values(seen: Evidence) -> Findings:
    """Find an x that only scales g, and values that are NaN although the gradients for the steps are finite."""
    if names := seen.record.scaled:
        yield _finding("scale_free", names=", ".join(names))
    wrong = ~np.isfinite(seen.looks.get("inner_value", np.zeros(1)))
    if wrong.any() and np.isfinite(seen.column("inner_residual")[wrong]).all():
        yield _finding("inner_nan", bad=wrong.sum(), looks=len(wrong))


def _curvature(seen: Evidence) -> Findings:
    mu, L = seen.mu, seen.L
    if mu < -ROUNDING * L and not (seen.adjoint is not None and seen.adjoint.allows(mu)):
        what = "how far y and v lag" if seen.has_v else "the bias"
        unmeasured = f", so {what} is not measured" if np.isnan(seen["hypergradient_error"]) else ""
        damping = f", or damp the adjoint by more than that: {_damped(seen)}" if seen.has_v else ""
        yield _finding("not_convex", mu=mu, L=L, unmeasured=unmeasured, damping=damping)
    turns = seen.taken * seen.solver.inner_counts[0]
    if np.isfinite(seen["inner_distance"]) and -ROUNDING * L <= mu < L / turns:
        freeze = FREEZE if mu < FROZEN * L else ""
        yield _finding("flat", mu=max(mu, 0), condition=seen["condition"], steps=turns, freeze=freeze)


def _damped(seen: Evidence) -> str:
    """Return an adjoint to copy. Its `mu` is an upper bound; MINRES may take ten steps per number in y."""
    eta, L = seen.eta, seen.L
    # Do not propose a step size that must change.
    kept = eta if SLOW < eta * L < 2 or not eta > 0 < L else 1 / L
    plain = f"{kept:.3g}" if kept * L > 0 else "adjoint"
    return f"bl.adjoints.damped({plain}, {-2 * seen.mu:.1g}), or take bl.adjoints.minres(max_steps=20)"


def _steps(seen: Evidence) -> Findings:
    for level, size in (("inner", seen.alpha), ("adjoint", seen.eta)):
        if size * seen.L > 2:
            sentence = large_step({level: size}, seen.L, "at the later looks, in the median")
            yield Finding(f"{level}_step", sentence)
    beta, L = seen.beta, seen.L_phi
    if beta * L > 2 and (seen.rise or not seen.noisy):  # if x runs away, noise hides little
        yield _finding("outer_step", size=beta, limit=2 / L, L=L, best=1 / L)


def _hypergradient(seen: Evidence) -> Findings:
    if seen["implicit_hypergradient"] <= seen.small * seen.largest:
        return  # x has converged, and the remaining hypergradient may be rounding
    error, behind = seen["hypergradient_error"], seen["inner_error"]
    if seen.has_v and error > LAGS and not (seen.noisy or seen.eta * seen.L > 2):
        remedy = _sooner(seen, "adjoint", seen.eta, "take more adjoint steps (bl.adjoints.steps, .cg)")
        yield _finding("adjoint_lags", residual=seen["adjoint_residual"], error=share(error), remedy=remedy)
    elif seen.has_v and (np.isnan(error) or seen.noisy) and (way := _way(seen)) < 0.5:
        steps, way, best = seen.taken, -np.expm1(-way), 1 / seen.L
        yield _finding("adjoint_lags", "adjoint_barely_moved", steps=steps, size=seen.eta, way=way, best=best)
    elif not seen.has_v and error > BIASED:
        remedy = _more_steps(seen, error)
        yield _finding("biased", name=seen.solver.name, error=share(error), remedy=remedy)
    if behind > LAGS and not seen.alpha * seen.L > 2:
        remedy = _sooner(seen, "inner", seen.alpha, "take more inner steps (inner_steps=)")
        yield _finding("y_lags", distance=seen["inner_distance"], error=share(behind), remedy=remedy)


def _way(seen: Evidence) -> float:
    """Return K·η·L, an upper bound on v's progress after K steps of η from v = 0; ∞ unless η·L is small."""
    rate, steps = seen.eta * seen.L, 0 if seen.adjoint is None else seen.adjoint.warm_steps
    return seen.taken * steps * rate if steps and 0 < rate < SLOW else np.inf


def _sooner(seen: Evidence, level: str, size: float, more: str) -> str:
    """Return a remedy for a level that lags. A slower x takes half of β = αμ/L_Φ: secants are below L_Φ."""
    if size * seen.L < 0.5:
        return say("raise_step", level=level, size=size, best=1 / seen.L, more=more)
    slower = 0.5 * size * seen.mu / seen.L_phi
    to = f" to about {slower:.2g}" if 0 < slower < seen.beta else ""
    return f"{more[0].upper()}{more[1:]}, or lower the outer step{to}."


def _more_steps(seen: Evidence, error: float) -> str:
    """Return how to reduce a bias, with the number of inner steps if it is known.

    Every differentiated step reduces a bias by the factor max(|1 − αμ|, |1 − αL|). Earlier steps add nothing.
    At a fixed point of x, h is zero and all of ∇Φ is bias: when ∇Φ has fallen to `FALLEN` of the largest h,
    the bias must be at most `BIASED` of it. The curvature is the measured one; it may change with x.
    """
    traits, (taken, now) = seen.solver.traits, seen.solver.inner_counts
    if traits.truncated_series:
        return "take more factors of its series (products=)"
    rate = max(abs(1 - seen.alpha * seen.mu), abs(1 - seen.alpha * seen.L))
    least, bias = BIASED * FALLEN * seen.largest, error * seen["implicit_hypergradient"]
    verb, where = ("differentiate", " (truncate=)") if now < taken else ("take", "")
    if seen.mu > 0 and 0 < rate < 1 and 0 < least < bias and traits.unrolled:
        count = now + np.ceil(np.log(least / bias) / np.log(rate))
        return say("enough_steps", verb=verb, count=count, now=now, where=where)
    return f"{verb} more inner steps{where}"


def _growth(seen: Evidence) -> Findings:
    """Find inner residuals that grow under rules without a step size, which cannot be judged otherwise."""
    norms = seen.column("inner_residual")
    norms = norms[np.isfinite(norms)]
    grows = len(norms) > 1 and norms[-1] > GROWS * norms[0] and norms[-1] >= norms.max()
    if grows and np.isnan(seen.column("inner_step")[-1]):
        yield _finding("inner_grows", first=norms[0], last=norms[-1])


def _blow_up(seen: Evidence, causes: list[Finding]) -> Findings:
    """Find an f that has grown by orders of magnitude for an unknown reason.

    If f at y*(x) falls, y has left a start where f was small, and the step sizes are fine.
    """
    solved = seen.column("solved_value")
    falls = not seen.noisy and len(solved) > 1 and solved[-1] <= solved[0]
    if seen.rise is None or falls or any(cause.code != "flat" for cause in causes):
        return
    fits = seen.alpha * seen.L <= 2
    others = ", as the inner one is within its range" if fits else ", and if that does not help, the others"
    of, (start, end) = "" if np.isnan(seen.beta) else f" {seen.beta:.3g}", seen.rise
    yield _finding("outer_grows", start=start, end=end, of=of, others=others)


def _dead(seen: Evidence) -> Findings:
    """Find gradients that are exactly zero, also nearby: the function ignores its argument."""
    half = len(seen.looks["step"]) // 2
    later = lambda name: seen.column(name)[half:]
    zero = lambda name: not np.any(later(name))
    flat = [objective for objective, name in (("g", "inner_beside"), ("f", "outer_beside")) if zero(name)]
    # On minibatches, an x that moves may have no rows in these batches. An x that has run away is often flat.
    moved = seen.noisy and np.any(later("moved")[1:])
    blind = seen.blind and (zero("hypergradient_beside") or "hypergradient_beside" not in seen.looks)
    if flat:
        objectives = "g and f do" if flat[1:] else f"{flat[0]} does"
        yield _finding("y_dead", objectives=objectives, hinge=HINGE if flat == ["f"] else "")
    elif seen.broke is None and (silent := np.min(later("silent_beside"))) > SILENT:
        yield _finding("y_dead", "y_mostly_dead", percent=np.floor(1000 * silent) / 10)
    elif blind or (seen.broke is None and zero("x_beside") and not moved):
        last = {name: column[-1] for name, column in seen.looks.items()}
        why = why_zero(last) if np.isfinite(last.get("held", np.nan)) else DEPENDS
        yield _finding("x_dead", when=" at every step" if seen.blind else "", why=why)


def _idle(seen: Evidence) -> Findings:
    """Find arrays of x without effect. If all have none, x is dead."""
    names = [name for name, moves in zip(seen.names, seen.record.moves, strict=True) if not moves]
    if names:
        more = f" and {len(names) - 5} more" if names[5:] else ""
        batches = " on the batches of the looks" if seen.noisy else ""
        yield _finding("x_unused", names=", ".join(names[:5]) + more, batches=batches)


def _rest(seen: Evidence) -> Findings:
    """Find an x that has stopped, by its steps over at least the last fifth of the run."""
    at, moved, size = (
        np.append(seen.record.began, seen.looks["step"]),
        seen.looks["moved"],
        seen.looks["x_norm"][-1],
    )
    start = np.flatnonzero(at <= at[-1] - max((seen.taken - seen.record.began) / 5, 10))
    if not len(start):
        return
    start = int(start[-1])
    way, scale = moved[start:].sum(), max(size, np.nansum(moved))
    norm, value = seen.looks["stationarity"][-1], abs(seen.looks["outer_value"][-1])
    gain = way * norm
    if seen.noisy and norm == 0:
        return  # the batch has no rows for x
    if not (np.isfinite([way, scale, gain, value]).all() and (way <= STILL * scale or gain <= GAIN * value)):
        return
    has_fallen = norm <= seen.small * seen.largest
    if has_fallen and (seen.alpha * seen.L > 2 or seen.eta * seen.L > 2):
        return  # such steps made the largest
    path = f"over the last {at[-1] - at[start]:.0f} steps x moved by {way:.2g} (‖x‖ = {size:.3g})"
    if seen.blind:
        yield _finding("x_rests", "x_started_stationary")
    elif seen.largest == 0:  # of the stationarity measure
        yield _finding("x_rests", "x_held")
    elif has_fallen:
        yield _finding("x_rests", moved=path, largest=seen.largest, norm=norm)
    elif norm > 10 * seen.small * seen.largest and not way * seen.L_phi > TURNS * norm:
        # The second condition is needed because a value may contain a large constant.
        of = "" if np.isnan(seen.beta) else f" {seen.beta:.2g}"
        # If v has hardly moved, the hypergradient is small, and a larger outer step is no remedy.
        eta, left, lag = seen.eta, seen["adjoint_residual"], ""
        if eta * seen.L < 0.5 and left > 0.5:
            lag = say("late_adjoint", residual=left, size=eta, best=1 / seen.L)
        yield _finding("x_still", moved=path, norm=norm, largest=seen.largest, lag=lag, of=of)
