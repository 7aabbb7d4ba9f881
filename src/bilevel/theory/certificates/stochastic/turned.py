"""A part of the price ‖h‖² turned into ‖∇Φ‖² itself, as in `storage`: a factor of up to two where noise is small."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bilevel.theory.certificates.stochastic.tracking import Numbers

# Shares of the surplus in ‖h‖² (all of it would leave rounding to decide), and the least Young parameter s.
TRIED = np.array([(0, 1), (0.5, 1e-3), (0.999, 1e-3), (0.5, 0.1), (0.9, 0.1), (0.5, 0.5), (0.9, 0.5)])


class Turned(NamedTuple):
    """ω‖h‖² ≥ ω(g²/(1 + s) − e²/s) for every ω and s; the first axis goes over those that are tried, ω = 0 first."""

    omega: Numbers
    weight: Numbers  # of e², 1 + ω/s
    share: Numbers  # of g², 1 + ω/(1 + s)

    @classmethod
    def of(cls, T: Numbers, room: Numbers) -> Turned:
        """For the gain T, where 1 − c exceeds what errors cost by `room`."""
        along = lambda column: column.reshape((-1,) + (1,) * np.ndim(T))
        s = np.maximum(T, along(TRIED[:, 1]))
        omega = along(TRIED[:, 0]) * np.maximum(room, 0) / (1 + T**2 / s)
        omega = np.where(np.isfinite(omega), omega, 0.0)
        return cls(omega, 1 + omega / s, 1 + omega / (1 + s))
