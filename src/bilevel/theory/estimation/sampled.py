"""Certificates for sampled constants: step sizes and bounds that hold if the constants do."""

from collections.abc import Container
from typing import NamedTuple

import numpy as np

from bilevel.theory.certificates.analyses import METHODS
from bilevel.theory.certificates.certificate import Certificate, StepSizes
from bilevel.theory.estimation.estimates import Estimated

OFFERED = ("paper", "star")  # the analyses in advice: the paper's and the sharpest


class StartErrors(NamedTuple):
    """Errors of a start, as certificates describe it."""

    gap: float  # Φ(x0) − infimum
    y_error: float  # ‖y0 − y*(x0)‖
    v_error: float | None  # ‖v*(x0)‖, because v starts at zero; None if its system was not solved


class Sampled(NamedTuple):
    """Step sizes, and a bound on the mean of ‖∇Φ‖² over `steps` steps, if the constants hold."""

    sizes: StepSizes
    bound: float
    steps: int
    certificate: Certificate  # its constants are the sampled ones


def sampled_certificates(
    estimated: Estimated, start: StartErrors, steps: int, methods: Container[str] = METHODS
) -> dict[str, Sampled]:
    """Return the certificates by name, "AID (star)" and so on, for this start and this number of steps."""
    found = {}
    for certificate in _offered(estimated):
        sizes = certificate.step_sizes(steps, *start)
        beta = min(float(sizes.outer), float(np.finfo(float).max))
        bound = float(certificate.bound(steps, *start, beta=beta))
        if certificate.method in methods and np.isfinite(bound):  # the paper's ITD needs a y0 near y*(x0)
            name = f"{certificate.method} ({certificate.analysis})"
            found[name] = Sampled(sizes._replace(outer=beta), bound, steps, certificate)
    return found


def _offered(estimated: Estimated) -> list[Certificate]:
    """Return the offered certificates for these constants, block by block where they can use it."""
    found = []
    for method, analyses in METHODS.items():
        for name in (name for name in analyses if name in OFFERED):
            if name == "star":
                constants = estimated.assume_blocks()
            elif method == "AID":  # its lemmas need M only as a bound on ∇_y f
                constants = estimated.assume(M=estimated.M_aid_at_least)
            else:
                constants = estimated.assume()
            found.append(analyses[name](constants))
    return found


def largest_beta(estimated: Estimated, methods: Container[str]) -> float:
    """Return the largest β of the certificates for these methods; zero if all of them allow any β."""
    betas = [float(one.beta_max) for one in _offered(estimated) if one.method in methods]
    return max((beta for beta in betas if np.isfinite(beta)), default=0.0)
