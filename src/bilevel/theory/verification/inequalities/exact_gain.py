"""Claims of the exact-gain certificates, `sharp` and `tight`: their recursions and their bounds.

Both state one positive linear system, w_k ≤ P w_{k−1} + q‖x_k − x_{k−1}‖ with error w_k[0] + w_k[1] + C₅, so the
claims are written once and take the system from the certificate.
"""

from collections.abc import Callable

import numpy as np

from bilevel.theory.certificates.gain import ErrorSystem
from bilevel.theory.certificates.sharp import SharpAID, SharpITD
from bilevel.theory.verification.inequalities.claim import (
    Claim,
    Setting,
    Sides,
    alpha_is_inverse_L,
    at_most,
    eta_is_inverse_L,
    horizons,
    running_mean,
)
from bilevel.theory.verification.measurement import Run

States = Callable[[Run, Setting], Sides]


def gain_claims(
    name: str,
    certificate: Callable[[Setting], SharpAID | SharpITD],
    states: States,
    bound: Callable[[Run, Setting], np.ndarray],
    method: str,
) -> tuple[Claim, ...]:
    """The three claims of one certificate; `states` gives (w[0], w[1]) of a run."""
    steps = (alpha_is_inverse_L,) if method == "ITD" else (alpha_is_inverse_L, eta_is_inverse_L)

    def system(s: Setting) -> ErrorSystem:
        return certificate(s).system

    def inner(r: Run, s: Setting):
        w, _ = states(r, s)
        return w[1:], system(s).r0 * w[:-1] + system(s).q0 * r.x_step[1:]

    def adjoint(r: Run, s: Setting):
        w, u = states(r, s)
        return u[1:], system(s).p * w[:-1] + system(s).r1 * u[:-1] + system(s).q1 * r.x_step[1:]

    def error(r: Run, s: Setting):
        w, u = states(r, s)
        return r.estimate_error, w + u + system(s).C5

    def mean(r: Run, s: Setting):
        return running_mean(r.gradient**2), bound(r, s)

    def certified(r: Run, s: Setting) -> str | None:
        if system(s).gain(s.beta) < 1:
            return at_most("β", s.beta, system(s).beta_cap, "what its lemmas allow")
        return f"β = {s.beta:.3g} is not below the certified {certificate(s).beta_max:.3g}"

    claims = [
        Claim(f"{name}: inner error", "w_k ≤ r₀w_{k−1} + q₀‖x_k − x_{k−1}‖", inner, steps, first=1),
        Claim(f"{name}: hypergradient error", "‖∇̂Φ − ∇Φ‖ ≤ w_k + u_k + C₅", error, steps),
        Claim(f"{name}: bound", "mean of ‖∇Φ‖² over K steps ≤ bound(K)", mean, (*steps, certified), first=1),
    ]
    if method == "AID":
        statement = "u_k ≤ p·w_{k−1} + r₁u_{k−1} + q₁‖x_k − x_{k−1}‖"
        claims.insert(1, Claim(f"{name}: adjoint error", statement, adjoint, steps, first=1))
    return tuple(claims)


def bound_from(certificate: SharpAID | SharpITD, r: Run, s: Setting, *start: float) -> np.ndarray:
    """The bound at every horizon, from measured initial errors and the descent seen so far."""
    beta = min(s.beta, float(certificate.system.beta_cap))  # they may differ by rounding
    return np.asarray(certificate.bound(horizons(r), r.descent, *start, beta=beta))
