"""What the descent lemma with the step kept, Σg² + γΣ‖h‖² ≤ 2·gap/β + Σe² and γ = 1 − βL_Φ, makes of a gain T = βu.

Shared by every certificate whose errors are driven by ‖h‖: `star` (`storage`), `momentum` and `stochastic`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bilevel.theory.reals import Floats


def largest_step(L_Phi: Floats, gain: Floats) -> Floats:
    """The β at which the price γ just pays for the errors: T² = γ, the root of β²u² + βL_Φ = 1."""
    with np.errstate(divide="ignore"):
        return (2 / np.asarray(L_Phi + np.hypot(L_Phi, 2 * gain)))[()]


def lowest_mean(descent: Floats, price: Floats, T: Floats, stored: Callable[[Floats], Floats]) -> Floats:
    """The lowest of (descent + (1 + ω/s)·stored((γ − ω)/(1 + ω/s)))/(1 + ω/(1 + s)) over some ω; γ is the `price`.

    `stored(γ)` is the most that Σe² − γΣ‖h‖² can be, and `descent` is 2·gap/β, both over K. ω = 0 is the lemma itself.
    As g_k ≤ ‖h_k‖ + e_k, ω‖h‖² is at least ω(g²/(1 + s) − e²/s) for any s > 0, so a part of the price can be turned
    into ‖∇Φ‖² itself: from an exact start all that T² does not need, which gains a factor of up to 2.
    """
    start = stored(price)
    lowest = np.asarray(descent + start)
    # T is the best s from an exact start, and √(stored/descent) where T is small.
    share = np.divide(start, descent, out=np.ones(lowest.shape), where=np.asarray(descent > 0))
    s = np.clip(np.maximum(T, np.sqrt(share)), 1e-6, 1e6)
    surplus = np.maximum(price - T**2, 0) / (1 + T**2 / s)
    # All of the surplus would leave a price at which rounding cannot tell finite from infinite.
    for omega in (0.5 * surplus, 0.999 * surplus):
        kept = stored((price - omega) / (1 + omega / s))
        lowest = np.fmin(lowest, (descent + (1 + omega / s) * kept) / (1 + omega / (1 + s)))
    return lowest[()]
