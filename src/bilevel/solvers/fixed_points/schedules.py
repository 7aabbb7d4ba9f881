"""Steps of its schedules at which a rule is tried: far ahead, if every part of y still moves there."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bilevel.solvers.fixed_points.trial import Case, Trial

FAR = 1_000_000  # steps
WINDOWS, FEWER = 16, 8  # of consecutive looks; fewer for a y of many entries
NO_COMMON_TIME = (
    "the inner rule moves parts of y only at the start and others only later, so that there is no one point where it "
    "rests: let the schedules of all parts overlap, or differentiate the steps with bl.itd or bl.solvers.rtho"
)


class Candidates(NamedTuple):
    times: tuple[int, ...]  # the preferred one first
    moves: np.ndarray  # which leaves of y ever move


def candidates(trial: Trial) -> Candidates:
    """Return a step far ahead, the latest step at which every part moves well, and the start.

    The rule runs with a gradient of constant sign and without one, while its counters jump. The first jumps
    are single steps, later ones a few percent, so that every longer part of a schedule is seen.
    """
    times = _times(trial)
    y, gradient = trial.draw(1), trial.draw(2)
    weights = 1 + 0.5 * np.cos(2.0 * np.arange(trial.steps))
    cases = []
    for window in times:
        ahead = np.diff(window, prepend=window[0]) - 1  # the rule itself counts one step
        ahead[0] = window[0]
        cases += [Case(y, trial.repeat(gradient, by), ahead) for by in (weights, 0.0)]
    found = np.stack([outcome.updates for outcome in trial.run(cases)])
    apart = np.abs(found[::2] - found[1::2])  # [window, step, entry]
    apart = np.where(np.isfinite(apart), apart, 0)
    largest = trial.largest(apart)  # [window, step, leaf]
    peak = largest.max(axis=(0, 1), initial=0)
    moves = peak > 0
    _check_overlap(trial, apart, peak)
    if not moves.any():
        return Candidates((FAR,), moves)
    share = (largest[..., moves] / peak[moves]).min(axis=-1).ravel()
    good = np.flatnonzero(share >= 0.5 * share.max()) if share.max() > 0 else np.zeros(1, int)
    return Candidates(tuple(dict.fromkeys((FAR, int(times.ravel()[good[-1]]), 0))), moves)


def _times(trial: Trial) -> np.ndarray:
    """Return increasing times [windows, steps]: every step of the first window, then geometric up to `FAR`."""
    windows = WINDOWS if trial.together > 1 else FEWER
    n = windows * trial.steps
    later = np.geomspace(trial.steps, FAR, n - trial.steps)
    times = np.concatenate([np.arange(trial.steps), later]).astype(np.int64)
    times = np.maximum.accumulate(times - np.arange(n)) + np.arange(n)  # at least by one
    return times.reshape(windows, trial.steps)


def _check_overlap(trial: Trial, apart: np.ndarray, peak: np.ndarray) -> None:
    """Raise if a part of y stops before another part starts."""
    most = apart.max(axis=1, initial=0)  # [window, entry]
    of_leaf = np.stack([trial.spread(window) for window in trial.largest(most)])
    moves = sorted((most > 1e-5 * of_leaf) & (most > 1e-6 * trial.spread(peak)), key=np.count_nonzero)
    if any(np.any(a & ~b) for a, b in pairwise(moves)):
        raise ValueError(NO_COMMON_TIME)
