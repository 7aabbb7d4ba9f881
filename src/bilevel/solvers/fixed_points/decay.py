"""Decay of a coupled rule: the c with Δ_t(γ, y) = Δ_t(γ + cy, 0) for every gradient γ and every y."""

import numpy as np

from bilevel.solvers.fixed_points.trial import Case, Trial

SCALES = (1.0, -30.0, 1e4)  # of y
LARGEST = 2.0**10  # decay
DIGITS = 80  # bits of a decay that bisection finds


def decay_by_ratio(trial: Trial, time: int) -> np.ndarray | None:
    """Return the decay Δ(0, y)/Δ(y, 0), or None if the rule is not coupled with this value."""
    y, start = trial.draw(1), trial.start_at(time)
    cases = [Case(y, trial.repeat(0 * y), start), Case(0 * y, trial.repeat(y), start)]
    pull, plain = (outcome.updates[0] for outcome in trial.run(cases))
    c = np.where(plain == 0, 0, pull / np.where(plain == 0, 1, plain))
    return c if _is_coupled(trial, c, time) else None


def decay_by_bisection(trial: Trial, time: int) -> np.ndarray | None:
    """Return the decay by bisection, for rules that see only the signs of gradients."""
    short, y = trial.of_one_step(), trial.draw(1)
    low, high = np.zeros(trial.size), np.full(trial.size, LARGEST)
    between = np.arange(1, short.together + 1) / (short.together + 1)
    start = short.start_at(time)
    pull = short.run([Case(y, short.repeat(0 * y), start)])[0].updates[0]
    for _ in range(int(DIGITS / np.log2(short.together + 1))):
        tried = [(1 - w) * low + w * high for w in between]
        outcomes = short.run([Case(y, short.repeat(-c * y), start) for c in tried])
        # At γ = −cy a decay that is too large still pulls y toward zero: the update is opposite to y.
        below = np.sum([outcome.updates[0] * y < 0 for outcome in outcomes], axis=0)
        ends = np.stack([low, *tried, high])
        low, high = (np.take_along_axis(ends, below[None] + k, 0)[0] for k in (0, 1))
    c = np.where(pull != 0, (low + high) / 2, 0)
    return c if _is_coupled(trial, c, time) else None


def _is_coupled(trial: Trial, c: np.ndarray, time: int) -> bool:
    """Return whether c is the decay, for gradients as large as y and as small as cy, and for several y."""
    drawn, few, start = trial.draw(2), min(trial.steps, 6), trial.start_at(time)
    turning = np.cos(1.0 + 2.0 * np.arange(trial.steps))
    largest = np.max(np.abs(c), initial=0)
    if not np.isfinite(largest):
        return False
    roots = trial.spread([np.sqrt(np.prod(shape)) for shape, _ in trial.shapes])
    cases = []
    for scale in SCALES:
        # Gradients of the same size, but with cy below the limit of clipping by norm.
        by = np.sign(scale) * min(abs(scale), 10 / max(largest, 1e-3))
        for y in (by * trial.draw(1), by * trial.draw(3)):
            decay = trial.rounded(c * y)
            for gradient in (drawn, 20 * roots * drawn * decay):
                at = trial.repeat(gradient, turning)
                triple = (0 * at, y), (at, y), (at + decay, 0 * y)
                cases += [Case(point, gradients, start) for gradients, point in triple]
    found = [outcome.updates[:few] for outcome in trial.run(cases)]
    for pull, left, right in zip(found[::3], found[1::3], found[2::3], strict=True):
        slack = 1e-3 * np.abs(pull) + 32 * trial.eps * np.maximum(np.abs(left), np.abs(right))
        if not np.all(np.abs(left - right) <= slack):
            return False
    return True
