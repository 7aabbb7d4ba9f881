"""Claims about single-loop ITD, in the paper's order and numbering."""

from dataclasses import replace

import numpy as np

from bilevel.theory.verification.inequalities.claim import (
    Claims,
    alpha_is_inverse_L,
    at_most,
    dense,
    discounted,
    short_alpha,
)

ITD_LEMMAS = Claims()


def contracting_beta(r, s):
    terms = s.itd.beta_terms
    limit = min(terms["radius"], terms["error feedback"])
    return at_most("β", s.beta, limit, "min{μ³/(2L(2L² + ρM)), μ²/(16L²C₄)}")


@ITD_LEMMAS.add("Lemma 5.12: radius", "‖y_k⁰ − y*_k‖ ≤ R_y", short_alpha)
def radius(r, s):
    return r.warm_error, np.full_like(r.warm_error, s.R_y)


@ITD_LEMMAS.add("Lemma 5.13: hypergradient error", "‖∇̂Φ − ∇Φ‖ ≤ C₄‖ŷ_k − y*_k‖ + C₅", short_alpha)
def estimate_error(r, s):
    C4, C5 = s.C4_C5
    return r.estimate_error, C4 * r.y_error + C5


@ITD_LEMMAS.add(
    "Lemma 5.15a: inner error",
    "‖ŷ_k − y*_k‖ ≤ C₆‖ŷ_{k−1} − y*_{k−1}‖ + (Lβ/μ)‖∇Φ(x_{k−1})‖ + C₇",
    *(alpha_is_inverse_L, contracting_beta),
    first=1,
)
def inner_error(r, s):
    at = replace(s.itd, beta=s.beta)
    drift = s.constants.kappa * s.beta
    return r.y_error[1:], at.C6 * r.y_error[:-1] + drift * r.gradient[:-1] + at.C7


@ITD_LEMMAS.add(
    "Lemma 5.15b: inner error, unrolled",
    "‖ŷ_k − y*_k‖ ≤ qᵏ‖ŷ_0 − y*_0‖ + (Lβ/μ)Σ q^{k−1−j}(‖∇Φ(x_j)‖ + C₅), q = 1 − μ/2L",
    *(alpha_is_inverse_L, contracting_beta),
)
def unrolled_inner_error(r, s):
    k, rate = s.constants, 1 - 1 / (2 * s.constants.kappa)
    start = rate ** np.arange(len(r.y_error)) * r.y_error[0]
    return r.y_error, start + k.kappa * s.beta * discounted(rate, r.gradient + s.itd.C5)


@ITD_LEMMAS.add(
    "Lemma 5.16: squared hypergradient error",
    "‖∇̂Φ − ∇Φ‖² ≤ 2C₄²qᵏ‖ŷ_0 − y*_0‖² + (6L³β²C₄²/μ³)Σ q^{k−1−j}(‖∇Φ(x_j)‖ + C₅)² + 2C₅², q = 1 − μ/4L",
    *(alpha_is_inverse_L, contracting_beta),
)
def squared_estimate_error(r, s):
    k, C4, C5 = s.constants, s.itd.C4, s.itd.C5
    rate = 1 - 1 / (4 * k.kappa)
    start = 2 * C4**2 * rate ** np.arange(len(r.y_error)) * r.y_error[0] ** 2
    drift = 6 * k.kappa**3 * (s.beta * C4) ** 2
    return r.estimate_error**2, start + drift * discounted(rate, (r.gradient + C5) ** 2) + 2 * C5**2


@ITD_LEMMAS.add(
    "Lemma B.1: Jacobian error",
    "‖∇_x ŷ_k − ∇_x y*_k‖ ≤ (1 − αμ)‖∇_x y*_k‖ + αρ‖y_k⁰ − y*_k‖",
    *(short_alpha, dense),
)
def jacobian_error(r, s):
    k = s.constants
    return r.jacobian_error, (1 - s.alpha * k.mu) * r.jacobian + s.alpha * k.rho * r.warm_error
