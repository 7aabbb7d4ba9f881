"""Warm-up of y₀ by gradient descent on g(x₀, ·) with step size 1/L: Lemma 5.8 for AID, Lemma 5.12 for ITD."""

from __future__ import annotations

import numpy as np

from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, nonnegative


def steps_to_reach(constants: Constants, D_y: Real, target: Floats) -> int | np.ndarray:
    """Smallest N with (1 − μ/L)^N · D_y ≤ target, that is ⌈log(D_y/target)₊ / log(1/(1 − μ/L))⌉.

    For μ = L one step is exact, so N is 0 or 1 and no logarithm of zero is taken.
    """
    D_y = nonnegative(D_y, "D_y", "it is the distance of the raw inner point from y*(x₀)")
    far = np.asarray(np.greater(D_y, target))
    contraction = np.asarray(1 - 1 / constants.kappa)
    if np.any(far & np.equal(target, 0) & (contraction > 0)):
        raise ValueError(
            "a target distance of 0 is never reached in finitely many steps; give a positive one"
        )
    # Divisions by zero below belong to entries that the two `where` discard.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.divide(D_y, target)
        distance = np.where(np.isinf(ratio), np.log(D_y) - np.log(target), np.log(ratio))
        slow = np.ceil(distance / -np.log1p(-1 / np.asarray(constants.kappa)))
    count = np.where(far, np.where(contraction > 0, slow, 1), 0).astype(np.int64)
    return int(count) if count.ndim == 0 else count
