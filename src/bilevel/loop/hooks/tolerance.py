"""Hook that stops at a small stationarity measure."""

import numpy as np

from bilevel.checks import check_positive
from bilevel.loop.hooks.base import Hook
from bilevel.loop.hooks.event import Event, Stop
from bilevel.loop.status import Code


class Tolerance(Hook):
    """Stop at the first step whose stationarity measure is at most `tol`.

    The measure is the norm of the estimated hypergradient, or ‖x − P(x − s·h)‖/s if the outer rule projects
    (`bl.projected`). Both are zero at a solution. It is an estimate, from one batch.

    Args:
        tol: a positive number.
    """

    of_one_run = True  # not of a sweep
    reads_info = False
    decides = True  # before other hooks see the event

    def __init__(self, tol: float):
        check_positive(tol, "tolerance tol", traced=False)
        self.tol: float = float(tol)
        self.asks: str | None = repr(self.tol)

    def __call__(self, event: Event) -> Stop | None:
        constrained = "stationarity" in event.trace
        measure = event.trace["stationarity" if constrained else "hypergradient_norm"]
        steps = event.first + np.arange(len(measure))
        # An estimate of exactly zero before v or y has moved has no meaning.
        small = np.flatnonzero((measure <= self.tol) & ~((measure == 0) & (steps < 2)))
        if not len(small):
            return None
        step = event.first + int(small[0]) + 1
        what = "the projected step's length" if constrained else "the estimated hypergradient's norm"
        return Stop(
            f"{what} {float(measure[small[0]]):.3g} is at most tol={self.tol:g} at step {step}; "
            "it is the method's own estimate: if that has a bias (ITD, DARTS and others), check it with bl.advise.",
            Code.CONVERGED,
            step,
        )
