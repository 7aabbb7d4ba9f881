"""Claims of the certificates: the recursions behind those that are error systems, and the bound of each.

The list of certificates is read from `analyses`; what is said here of each is where on a run its errors are seen.
"""

from collections.abc import Callable

import numpy as np

from bilevel.theory.certificates.analyses import METHODS
from bilevel.theory.certificates.certificate import Certificate
from bilevel.theory.certificates.from_system import SystemCertificate
from bilevel.theory.verification.inequalities.claim import (
    Claim,
    Hypothesis,
    Setting,
    Sides,
    at_most,
    equal,
    horizons,
    running_mean,
)
from bilevel.theory.verification.measurement import Run

NAMES = {
    ("AID", "paper"): "Theorem 5.9: bound",
    ("ITD", "paper"): "Theorem 5.17: bound",
    ("AID", "earlier"): "Theorem 5.11: earlier bound, made explicit",
    ("ITD", "earlier"): "earlier bound, made explicit",
}
ADJOINT = {"earlier": "v_star_error", "star": "v_star_error"}  # at y*; the others have it at ŷ


def certificate_claims(method: str) -> tuple[Claim, ...]:
    return tuple(claim for analysis in METHODS[method] for claim in _claims(method, analysis))


def _claims(method: str, analysis: str) -> tuple[Claim, ...]:
    certificate = lambda s: made_for(s, method, analysis)
    errors = lambda r: errors_of(r, method, analysis)
    needs = _step_sizes(certificate)
    claims = _recursions(certificate, errors, needs, method, analysis) if _is_system(analysis) else ()

    def mean(r: Run, s: Setting) -> Sides:
        first = tuple(error[0] for error in errors(r))
        # They may differ by rounding.
        beta = min(s.beta, float(certificate(s).beta_max)) if analysis != "star" else s.beta
        return running_mean(r.gradient**2), certificate(s).bound_from(horizons(r), r.descent, first, beta)

    def certified(r: Run, s: Setting) -> str | None:
        return at_most("β", s.beta, certificate(s).beta_max, f"the largest that {analysis} certifies")

    name = NAMES.get((method, analysis), f"{analysis}: bound")
    statement = "mean of ‖∇Φ‖² over K steps ≤ bound(K)"
    return (*claims, Claim(name, statement, mean, (*needs, certified), first=1))


def made_for(s: Setting, method: str, analysis: str) -> Certificate:
    """The certificate for the run's constants, and for its steps and its start where it leaves a choice."""
    make = METHODS[method][analysis]
    if analysis == "star":
        return make(s.constants, s.alpha) if method == "ITD" else make(s.constants, s.alpha, s.eta)
    return make(s.constants, s.R_y) if method == "ITD" and analysis != "tight" else make(s.constants)


def errors_of(r: Run, method: str, analysis: str) -> tuple[np.ndarray, np.ndarray]:
    """The two errors of every iteration that the analysis speaks of."""
    if method == "ITD":
        return (r.warm_error if analysis in ("tight", "star") else r.y_error), np.zeros_like(r.y_error)
    if method == "SOBA":
        return r.warm_error, r.v_star_error
    return r.y_error, getattr(r, ADJOINT.get(analysis, "v_error"))


def _is_system(analysis: str) -> bool:
    return analysis in ("sharp", "tight", "star")


def _step_sizes(certificate: Callable[[Setting], Certificate]) -> tuple[Hypothesis, ...]:
    """The run has to take the analysis' own α and η."""

    def contracting(r: Run, s: Setting) -> str | None:
        return at_most("α", s.alpha, 2 / s.constants.L * (1 - 1e-9), "2/L")

    def alpha(r: Run, s: Setting) -> str | None:
        return contracting(r, s) or equal("α", s.alpha, certificate(s).alpha, "the analysis' step")

    def eta(r: Run, s: Setting) -> str | None:
        if s.eta is None:
            return None
        too_long = at_most("η", s.eta, 2 / s.constants.L * (1 - 1e-9), "2/L")
        return too_long or equal("η", s.eta, certificate(s).eta, "the analysis' step")

    return alpha, eta


def _recursions(certificate, errors, needs, method: str, analysis: str) -> tuple[Claim, ...]:
    """w_k ≤ Pw_{k−1} + q‖x_k − x_{k−1}‖ and e_k ≤ c₀w_k + u_k + C₅, row by row."""

    def states(r: Run, s: Setting) -> tuple[SystemCertificate, np.ndarray, np.ndarray]:
        c = certificate(s)
        return c, *(weight * error for weight, error in zip(c.weights, errors(r), strict=True))

    def inner(r: Run, s: Setting) -> Sides:
        c, w, _ = states(r, s)
        return w[1:], c.system.r0 * w[:-1] + c.system.q0 * r.x_step[1:]

    def adjoint(r: Run, s: Setting) -> Sides:
        c, w, u = states(r, s)
        return u[1:], c.system.p * w[:-1] + c.system.r1 * u[:-1] + c.system.q1 * r.x_step[1:]

    def error(r: Run, s: Setting) -> Sides:
        c, w, u = states(r, s)
        return r.estimate_error, c.system.c0 * w + u + c.system.C5

    claims = [
        Claim(f"{analysis}: inner error", "w_k ≤ r₀w_{k−1} + q₀‖x_k − x_{k−1}‖", inner, needs, first=1),
        Claim(f"{analysis}: hypergradient error", "‖∇̂Φ − ∇Φ‖ ≤ c₀w_k + u_k + C₅", error, needs),
    ]
    if method != "ITD":
        statement = "u_k ≤ p·w_{k−1} + r₁u_{k−1} + q₁‖x_k − x_{k−1}‖"
        claims.insert(1, Claim(f"{analysis}: adjoint error", statement, adjoint, needs, first=1))
    return tuple(claims)
