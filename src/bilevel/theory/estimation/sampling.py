"""Certificates for constants that were sampled: step sizes and bounds that hold if the constants do."""

from typing import NamedTuple

import numpy as np

from bilevel.theory.certificates.analyses import METHODS
from bilevel.theory.certificates.certificate import Certificate, StepSizes
from bilevel.theory.estimation.estimated import Estimated

OFFERED = ("paper", "star")  # of the analyses: the paper's and the sharpest


class Start(NamedTuple):
    """What certificates ask of a start."""

    gap: float  # Φ(x0) − infimum
    y_error: float  # ‖y0 − y*(x0)‖
    v_error: float  # ‖v*(x0)‖, because v starts at zero


class Sampled(NamedTuple):
    """Step sizes, and what the mean of ‖∇Φ‖² over `steps` steps from the start is at most, if the constants hold."""

    sizes: StepSizes
    bound: float
    steps: int
    certificate: Certificate  # its constants are the sampled ones


def sampled(estimated: Estimated, start: Start, steps: int) -> dict[str, Sampled]:
    """By name, "AID (star)" and so on, for the start and the number of steps given."""
    found = {}
    for method, analyses in METHODS.items():
        for name in (name for name in analyses if name in OFFERED):
            certificate = analyses[name](_constants(estimated, method, name))
            sizes = certificate.step_sizes(steps, *start)
            beta = min(float(sizes.outer), float(np.finfo(float).max))
            bound = float(certificate.bound(steps, *start, beta=beta))
            if np.isfinite(bound):  # the paper's for ITD asks for a y0 near y*(x0)
                found[f"{method} ({name})"] = Sampled(sizes._replace(outer=beta), bound, steps, certificate)
    return found


def _constants(estimated: Estimated, method: str, analysis: str):
    """Block by block where the analysis can use it; AID's lemmas need of M only that it bounds ∇_y f."""
    if analysis == "star":
        return estimated.assume_blocks()
    return estimated.assume(M=estimated.M_aid_at_least) if method == "AID" else estimated.assume()
