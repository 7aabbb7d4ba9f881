"""The decay of a coupled rule: the c with Δ_t(γ, y) = Δ_t(γ + cy, 0) for every gradient γ and every y."""

import jax.numpy as jnp
import numpy as np

from bilevel.solvers.fixed_points.trial import Case, Leaves, Trial, scaled

SCALES = (1.0, -30.0, 1e4)  # of y
LARGEST = 2.0**10  # decay
DIGITS = 80  # bits of a decay that bisection finds


def decay_by_ratio(trial: Trial, time: int) -> Leaves | None:
    """Return the decay Δ(0, y)/Δ(y, 0), or None if the rule is not coupled by that."""
    y, nothing = trial.draw(1), scaled(trial.draw(1), 0.0)
    cases = [Case(b, trial.repeat(a), trial.start_at(time)) for a, b in ((nothing, y), (y, nothing))]
    pull, plain = ([leaf[0] for leaf in outcome.updates] for outcome in trial.run(cases))
    c = [np.where(q == 0, 0, p / np.where(q == 0, 1, q)) for p, q in zip(pull, plain, strict=True)]
    return c if _is_coupled(trial, c, time) else None


def decay_by_bisection(trial: Trial, time: int) -> Leaves | None:
    """Return the same by dividing intervals, for rules that see only the signs of gradients."""
    short, y = trial.of_one_step(), trial.draw(1)
    low, high = [np.zeros(a.shape) for a in y], [np.full(a.shape, LARGEST) for a in y]
    between = np.arange(1, short.together + 1) / (short.together + 1)
    start = short.start_at(time)
    pull = short.run([Case(y, short.repeat(scaled(y, 0.0)), start)])[0].updates
    for _ in range(int(DIGITS / np.log2(short.together + 1))):
        tried = [[(1 - w) * p + w * q for p, q in zip(low, high, strict=True)] for w in between]
        gradients = [[(-c * a).astype(a.dtype) for c, a in zip(cs, y, strict=True)] for cs in tried]
        updates = [found.updates for found in short.run([Case(y, short.repeat(g), start) for g in gradients])]
        for i, a in enumerate(y):
            # At γ = −cy too large a decay still pulls y toward zero: the update is opposite to y.
            below = np.sum([update[i][0] * a.astype(float) < 0 for update in updates], axis=0)
            ends = np.stack([low[i], *(cs[i] for cs in tried), high[i]])
            low[i], high[i] = (np.take_along_axis(ends, below[None] + k, 0)[0] for k in (0, 1))
    c = [np.where(d[0] != 0, (p + q) / 2, 0) for d, p, q in zip(pull, low, high, strict=True)]
    return c if _is_coupled(trial, c, time) else None


def _is_coupled(trial: Trial, c: Leaves, time: int) -> bool:
    """Return whether c is the decay, for gradients as large as y and as small as cy, and for several y."""
    drawn, few = trial.draw(2), min(trial.steps, 6)
    turning = np.cos(1.0 + 2.0 * np.arange(trial.steps))
    largest = max(np.max(np.abs(leaf), initial=0) for leaf in c)
    if not np.isfinite(largest):
        return False
    cases = []
    for scale in SCALES:
        # As large as that, but with cy below what clipping by norm lets through.
        by = np.sign(scale) * min(abs(scale), 10 / max(largest, 1e-3))
        for y in (scaled(trial.draw(1), by), scaled(trial.draw(3), by)):
            decay = [(p * q).astype(q.dtype) for p, q in zip(c, y, strict=True)]
            small = [
                (20 * np.sqrt(p.size) * p.astype(float) * q).astype(p.dtype)
                for p, q in zip(drawn, decay, strict=True)
            ]
            nothing = scaled(y, 0.0)
            for gradient in (drawn, small):
                at = trial.repeat(gradient, turning)
                shifted = [p + q for p, q in zip(at, decay, strict=True)]
                for gradients, point in ((trial.repeat(nothing), y), (at, y), (shifted, nothing)):
                    cases.append(Case(point, gradients, trial.start_at(time)))
    outcomes = [[leaf[:few] for leaf in outcome.updates] for outcome in trial.run(cases)]
    for pull, left, right in zip(outcomes[::3], outcomes[1::3], outcomes[2::3], strict=True):
        for p, a, b, (_, dtype) in zip(pull, left, right, trial.shapes, strict=True):
            slack = 1e-3 * np.abs(p) + 32 * float(jnp.finfo(dtype).eps) * np.maximum(np.abs(a), np.abs(b))
            if not np.all(np.abs(a - b) <= slack):
                return False
    return True
