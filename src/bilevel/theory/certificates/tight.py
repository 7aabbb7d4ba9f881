"""Exact gain on lemmas that drop nothing: the strongest certificates here.

The paper's proofs discard two things that cost no new assumption to keep:

* the step that contracts the error contracts the drift of its target as well, so every perturbation carries the
  factor 1 − αμ (or 1 − ημ), which vanishes as κ → 1;
* ITD's Jacobian error αρM‖y_k⁰ − y*_k‖ is itself part of the recursion. Tracking it replaces Lemma 5.12:
  no R_y, no bound on ∇_x f, and the inherent error is M²(κ − 1)² for every ρ, which is exactly the lower bound.
"""

from __future__ import annotations

from bilevel.theory.certificates.gain import ErrorSystem
from bilevel.theory.certificates.paper_aid import aid as paper_aid
from bilevel.theory.certificates.sharp import SharpAID, SharpITD
from bilevel.theory.constants import Constants


def aid(constants: Constants) -> SharpAID:
    """AID with the contraction kept on every term (notation of `sharp.aid`):

    a_k ≤ (1 − αμ)(a_{k−1} + (L/μ)d_k),  b_k ≤ (1 − ημ)(b_{k−1} + C₀αL·a_{k−1} + C₀(αL + 1)d_k).
    """
    p, L = paper_aid(constants), constants.L
    inner, adjoint = 1 - p.alpha * constants.mu, 1 - p.eta * constants.mu
    system = ErrorSystem(
        r0=inner,
        r1=adjoint,
        p=adjoint * L * p.C0 * p.alpha * L / p.C3,
        q0=inner * p.C3 * constants.kappa,
        q1=adjoint * L * p.C0 * (p.alpha * L + 1),
        C5=0.0,
        beta_cap=1 / constants.L_Phi,
    )
    return SharpAID(constants, p.alpha, p.eta, p.C3, system)


def itd(constants: Constants) -> SharpITD:
    """ITD in the warm-start error s_k = ‖y_k⁰ − y*_k‖, without a radius:

    s_k ≤ (1 − αμ)s_{k−1} + (L/μ)d_k  and  e_k ≤ ((1 − αμ)(L + αL²) + αρM)s_k + M(1 − αμ)L/μ.

    `y_error` of the returned certificate is s₀ = ‖y₀ − y*(x₀)‖, before the first update.
    """
    L, M = constants.L, constants.M
    alpha = 1 / L
    inner = 1 - alpha * constants.mu
    weight = inner * (L + alpha * L**2) + alpha * constants.rho * M
    system = ErrorSystem(
        r0=inner,
        r1=0.0,
        p=0.0,
        q0=weight * constants.kappa,
        q1=0.0,
        C5=M * inner * constants.kappa,
        beta_cap=1 / constants.L_Phi,
    )
    return SharpITD(constants, alpha, weight, system)
