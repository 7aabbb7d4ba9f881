"""The steps of its schedules at which a rule is tried: where y comes to rest, if every part still moves there."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bilevel.solvers.fixed_points.trial import Case, Trial

FAR = 1_000_000  # steps
WINDOWS, FEWER = 16, 8  # of consecutive looks; fewer for a y of many entries


class Candidates(NamedTuple):
    times: tuple[int, ...]  # the preferred one first
    move: list[bool]  # which leaves of y ever move


def candidates(trial: Trial) -> Candidates:
    """Return a step far ahead, the latest step at which every part moves well, and the start.

    The rule runs with a gradient of constant sign, and without one, while its counters jump: first over every step,
    then by a few percent at a time, so that every longer part of a schedule is seen.
    """
    times = _times(trial)
    y, gradient = trial.draw(1), trial.draw(2)
    weights = 1 + 0.5 * np.cos(2.0 * np.arange(trial.steps))
    cases = []
    for window in times:
        ahead = np.diff(window, prepend=window[0]) - 1  # a rule counts one step by itself
        ahead[0] = window[0]
        cases += [
            Case(y, trial.repeat(gradient, weights), ahead),
            Case(y, trial.repeat(gradient, 0.0), ahead),
        ]
    outcomes = [outcome.updates for outcome in trial.run(cases)]
    # [leaf][window, step, ...]
    apart = [
        np.stack([np.abs(p[i] - q[i]) for p, q in zip(outcomes[::2], outcomes[1::2], strict=True)])
        for i in range(len(y))
    ]
    apart = [np.where(np.isfinite(leaf), leaf, 0) for leaf in apart]
    largest = np.stack([leaf.max(axis=tuple(range(2, leaf.ndim)), initial=0) for leaf in apart])
    peak = largest.max(axis=(1, 2), initial=0)
    move = [bool(p > 0) for p in peak]
    _check_overlap(apart, peak)
    if not any(move):
        return Candidates((FAR,), move)
    share = (largest[peak > 0] / peak[peak > 0][:, None, None]).min(axis=0).ravel()
    good = np.flatnonzero(share >= 0.5 * share.max()) if share.max() > 0 else np.zeros(1, int)
    return Candidates(tuple(dict.fromkeys((FAR, int(times.ravel()[good[-1]]), 0))), move)


def _times(trial: Trial) -> np.ndarray:
    """Return increasing times [windows, steps]: every step of the first window, then geometric up to `FAR`."""
    windows = WINDOWS if trial.together > 1 else FEWER
    n = windows * trial.steps
    later = np.geomspace(trial.steps, FAR, n - trial.steps)
    times = np.concatenate([np.arange(trial.steps), later]).astype(np.int64)
    times = np.maximum.accumulate(times - np.arange(n)) + np.arange(n)  # by one at least
    return times.reshape(windows, trial.steps)


def _check_overlap(apart: list[np.ndarray], peak: np.ndarray) -> None:
    """Raise if a part of y stops before another part starts."""
    windows = []
    for w in range(apart[0].shape[0] if apart else 0):
        moves = []
        for leaf, p in zip(apart, peak, strict=True):
            most = leaf[w].max(axis=0, initial=0)
            moves.append(((most > 1e-5 * most.max(initial=0)) & (most > 1e-6 * p)).ravel())
        windows.append(np.concatenate(moves))
    windows.sort(key=np.count_nonzero)
    if any(np.any(a & ~b) for a, b in pairwise(windows)):
        raise ValueError(
            "the inner rule moves parts of y only at the start and others only later, so that there is no one point "
            "where it rests: let the schedules of all parts overlap, or differentiate the steps with bl.itd or bl.rtho"
        )
