"""Claims about single-loop AID, in the paper's order and numbering."""

import numpy as np

from bilevel.theory.certificates.contraction import two_sequence_contraction
from bilevel.theory.verification.inequalities.claim import (
    Claims,
    alpha_is_inverse_L,
    at_most,
    discounted,
    eta_is_inverse_L,
    short_alpha,
    short_eta,
)

AID_LEMMAS = Claims()


def contracting_beta(r, s):
    terms = s.aid.beta_terms
    limit = min(terms["inner contraction"], terms["adjoint contraction"])
    return at_most("β", s.beta, limit, "min{C₁μα/(4C₂C₃), ημ/(2LC₂)}")


def two_sequences(r, s):
    """Object unless the two errors satisfy the recursions of Lemma B.2, which covers any such sequences."""
    k = s.constants
    if k.rho == 0:
        return "with ρ = 0 its radii are infinite and nothing is claimed"
    if objection := short_alpha(r, s) or short_eta(r, s):
        return objection
    lemma = two_sequence_contraction(k, s.alpha, s.eta)
    a, b = r.y_error, r.v_error
    first = (1 - s.alpha * k.mu) * a[:-1] + s.alpha * k.rho / 2 * a[:-1] ** 2
    first = first + k.kappa * s.beta * (k.rho * b[:-1] + lemma.c_prime)
    second = (1 - s.eta * k.mu + lemma.c0 * s.beta * k.rho) * b[:-1]
    second = second + s.alpha * lemma.c0 * k.L * a[1:] + lemma.c0 * s.beta * lemma.c_prime
    if np.any(a[1:] > first) or np.any(b[1:] > second):
        return "‖ŷ_k − y*_k‖ and ‖v̂_k − ṽ*_k‖ do not satisfy its recursions here"
    if a[0] > lemma.R_a or b[0] > lemma.R_b:
        return "the start is outside the radii R_a, R_b"
    return at_most("β", s.beta, lemma.beta_max, "the lemma's largest")


INVERSE_L = (alpha_is_inverse_L, eta_is_inverse_L)


@AID_LEMMAS.add(
    "Lemma 5.1a: inner step",
    "‖ŷ_k − y_k⁰‖ ≤ αL(‖ŷ_{k−1} − y*_{k−1}‖ + ‖x_k − x_{k−1}‖)",
    short_alpha,
    first=1,
)
def inner_step(r, s):
    return r.y_step[1:], s.alpha * s.constants.L * (r.y_error[:-1] + r.x_step[1:])


@AID_LEMMAS.add(
    "Lemma 5.1b: inner error",
    "‖ŷ_k − y*_k‖ ≤ (1 − αμ)‖ŷ_{k−1} − y*_{k−1}‖ + (L/μ)‖x_k − x_{k−1}‖",
    short_alpha,
    first=1,
)
def inner_error(r, s):
    k = s.constants
    return r.y_error[1:], (1 - s.alpha * k.mu) * r.y_error[:-1] + k.kappa * r.x_step[1:]


@AID_LEMMAS.add("Lemma 5.3a: adjoint split", "‖v̂_k − v*_k‖ ≤ ‖v̂_k − ṽ*_k‖ + C₀‖ŷ_k − y*_k‖")
def adjoint_split(r, s):
    return r.v_star_error, r.v_error + s.aid.C0 * r.y_error


@AID_LEMMAS.add(
    "Lemma 5.3b: adjoint error",
    "‖v̂_k − ṽ*_k‖ ≤ (1 − ημ)‖v̂_{k−1} − ṽ*_{k−1}‖ + C₀(‖ŷ_k − y_k⁰‖ + ‖x_k − x_{k−1}‖)",
    short_eta,
    first=1,
)
def adjoint_error(r, s):
    return r.v_error[1:], (1 - s.eta * s.constants.mu) * r.v_error[:-1] + s.aid.C0 * (r.y_step + r.x_step)[1:]


@AID_LEMMAS.add("Lemma 5.5: hypergradient error", "‖∇̂Φ − ∇Φ‖ ≤ C₃‖ŷ_k − y*_k‖ + L‖v̂_k − ṽ*_k‖")
def estimate_error(r, s):
    return r.estimate_error, s.aid.C3 * r.y_error + s.constants.L * r.v_error


def potential(r, s):
    return r.v_error + s.aid.C1 * r.y_error


@AID_LEMMAS.add(
    "Lemma 5.6 (proof): potential",
    "E_k ≤ (1 − μ/2L)E_{k−1} + βC₂‖∇Φ(x_{k−1})‖",
    *(*INVERSE_L, contracting_beta),
    first=1,
)
def potential_recursion(r, s):
    E, k = potential(r, s), s.constants
    return E[1:], (1 - 1 / (2 * k.kappa)) * E[:-1] + s.beta * s.aid.C2 * r.gradient[:-1]


@AID_LEMMAS.add(
    "Lemma 5.6: squared hypergradient error",
    "‖∇̂Φ − ∇Φ‖² ≤ L²qᵏE₀² + (3β²C₂²L³/μ)Σ q^{k−1−t}‖∇Φ(x_t)‖², q = 1 − μ/4L",
    *(*INVERSE_L, contracting_beta),
)
def squared_estimate_error(r, s):
    k, E0 = s.constants, potential(r, s)[0]
    rate = 1 - 1 / (4 * k.kappa)
    start = k.L**2 * rate ** np.arange(len(r.gradient)) * E0**2
    drift = 3 * (s.beta * s.aid.C2) ** 2 * k.L**3 / k.mu
    return r.estimate_error**2, start + drift * discounted(rate, r.gradient**2)


@AID_LEMMAS.add("Lemma 5.8: initialization", "E₀ ≤ M/L + M/μ + C₁‖y_0 − y*_0‖", *INVERSE_L)
def initialization(r, s):
    c_y = max(r.warm_error[0], np.finfo(float).tiny) / s.constants.mu
    return potential(r, s)[:1], np.atleast_1d(s.aid.E0_bound(c_y))


@AID_LEMMAS.add("Lemma B.2: inner radius", "‖ŷ_k − y*_k‖ ≤ R_a", two_sequences)
def inner_radius(r, s):
    return r.y_error, np.full_like(r.y_error, two_sequence_contraction(s.constants, s.alpha, s.eta).R_a)


@AID_LEMMAS.add("Lemma B.2: adjoint radius", "‖v̂_k − ṽ*_k‖ ≤ R_b", two_sequences)
def adjoint_radius(r, s):
    return r.v_error, np.full_like(r.v_error, two_sequence_contraction(s.constants, s.alpha, s.eta).R_b)
