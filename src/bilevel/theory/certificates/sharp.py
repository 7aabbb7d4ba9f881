"""Lemmas of the paper, summed exactly: certificates for AID and ITD by ℓ₂ gain.

Theorems 5.9 and 5.17 bound the error recursion of AID (two states) and ITD (one) by a scalar potential. Here the
same recursions enter `certificates.gain` unchanged, so the difference is only the price of that potential.
"""

from typing import Any

import numpy as np

from bilevel.theory.certificates import paper
from bilevel.theory.certificates.certificate import inverse
from bilevel.theory.certificates.gain import ClosedLoop, SystemCertificate
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real


def aid(constants: Constants) -> SystemCertificate:
    """Return the exact gain of Lemmas 5.1, 5.3 and 5.5.

    With a_k = ‖ŷ_k − y*_k‖, b_k = ‖v̂_k − ṽ*_k‖ and d_k = ‖x_k − x_{k−1}‖:

    a_k ≤ (1 − αμ)a_{k−1} + (L/μ)d_k,  b_k ≤ (1 − ημ)b_{k−1} + C₀αL·a_{k−1} + C₀(αL + 1)d_k,  e_k ≤ C₃a_k + L·b_k.
    """
    p, L = paper.aid(constants), constants.L
    system = ClosedLoop(
        r0=1 - p.alpha * constants.mu,
        r1=1 - p.eta * constants.mu,
        p=L * p.C0 * p.alpha * L / p.C3,
        q0=p.C3 * constants.kappa,
        q1=L * p.C0 * (p.alpha * L + 1),
        beta_cap=1 / constants.L_Phi_blockwise,
    )
    return of_aid("sharp", constants, system)


def itd(constants: Constants, R_y: Real | None = None) -> SystemCertificate:
    """Return the exact gain of Lemmas 5.1 and 5.13.

    With a_k = ‖ŷ_k − y*_k‖ and d_k = ‖x_k − x_{k−1}‖:

    a_k ≤ (1 − αμ)a_{k−1} + (L/μ)d_k  and  e_k ≤ C₄a_k + C₅ while Lemma 5.12 holds (β ≤ αμ²R_y/(LG), y₀ within R_y).
    """
    p = paper.itd(constants, R_y)
    limits = {"smoothness": 1 / constants.L_Phi_blockwise, "radius": paper.radius_beta(constants, p.R_y)}
    inner, cap = 1 - p.alpha * constants.mu, np.minimum(*limits.values())
    system = ClosedLoop(r0=inner, q0=p.C4 * constants.kappa, C5=p.C5, beta_cap=cap)
    return with_gain("sharp", "ITD", constants, p.alpha, None, system, (p.C4, 0.0), p.errors, limits)


def of_aid(analysis: str, constants: Constants, system: ClosedLoop) -> SystemCertificate:
    """Return the certificate of a system in the paper's two errors of AID."""
    p = paper.aid(constants)
    start = lambda y_error, v_error: paper.start_of_aid(constants, p.C0, y_error, v_error)
    limits = {"smoothness": system.beta_cap}
    return with_gain(analysis, "AID", constants, p.alpha, p.eta, system, (p.C3, constants.L), start, limits)


def with_gain(
    analysis: str,
    method: str,
    constants: Any,
    alpha: Floats,
    eta: Floats | None,
    system: Any,
    weights: Any,
    start: Any,
    limits: dict[str, Any],
) -> SystemCertificate:
    """Return the certificate of a system; the feedback of its errors is one more limit on β."""
    limits = limits | {"error feedback": 0.5 * inverse(system.unit_gain)}
    return SystemCertificate(analysis, method, constants, alpha, eta, limits, system, weights, start)
