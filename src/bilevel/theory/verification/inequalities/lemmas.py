"""Claims about single-loop AID and ITD, and about Φ for both, in the paper's order and numbering."""

from dataclasses import replace

import numpy as np

from bilevel.theory.certificates.contraction import two_sequence_contraction
from bilevel.theory.certificates.paper import estimator_constants
from bilevel.theory.verification.inequalities.claims import Claims, Hypothesis, at_most, dense, equal

AID_LEMMAS, ITD_LEMMAS, PHI, PHI_BLOCKWISE = Claims(), Claims(), Claims(), Claims()

short_alpha: Hypothesis = lambda r, s: at_most("α", s.alpha, 1 / s.constants.L, "1/L")
short_eta: Hypothesis = lambda r, s: at_most("η", s.eta, 1 / s.constants.L, "1/L")
alpha_is_inverse_L: Hypothesis = lambda r, s: equal("α", s.alpha, 1 / s.constants.L, "1/L")
eta_is_inverse_L: Hypothesis = lambda r, s: equal("η", s.eta, 1 / s.constants.L, "1/L")
half_over_smoothness: Hypothesis = lambda r, s: at_most("β", s.beta, 1 / (2 * s.constants.L_Phi), "1/(2L_Φ)")


def one_over_smoothness(r, s):
    return at_most("βL_Φ", s.beta * s.blocks.L_Phi, 1.0, "its largest")


def contracting_aid(r, s):
    terms = s.aid.beta_terms
    limit = min(terms["inner contraction"], terms["adjoint contraction"])
    return at_most("β", s.beta, limit, "min{C₁μα/(4C₂C₃), ημ/(2LC₂)}")


def contracting_itd(r, s):
    limit = min(s.itd.beta_terms["radius"], s.itd.beta_terms["error feedback"])
    return at_most("β", s.beta, limit, "min{μ³/(2L(2L² + ρM)), μ²/(16L²C₄)}")


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


def discounted(rate, terms):
    """Return Σ_{j<k} rate^{k−1−j}·terms_j for k = 0..K−1."""
    sums = np.zeros(len(terms))
    for k in range(1, len(terms)):
        sums[k] = rate * sums[k - 1] + terms[k - 1]
    return sums


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
def error_of_aid(r, s):
    return r.estimate_error, s.aid.C3 * r.y_error + s.constants.L * r.v_error


def potential(r, s):
    return r.v_error + s.aid.C1 * r.y_error


@AID_LEMMAS.add(
    "Lemma 5.6 (proof): potential",
    "E_k ≤ (1 − μ/2L)E_{k−1} + βC₂‖∇Φ(x_{k−1})‖",
    alpha_is_inverse_L,
    eta_is_inverse_L,
    contracting_aid,
    first=1,
)
def potential_recursion(r, s):
    E, k = potential(r, s), s.constants
    return E[1:], (1 - 1 / (2 * k.kappa)) * E[:-1] + s.beta * s.aid.C2 * r.gradient[:-1]


@AID_LEMMAS.add(
    "Lemma 5.6: squared hypergradient error",
    "‖∇̂Φ − ∇Φ‖² ≤ L²qᵏE₀² + (3β²C₂²L³/μ)Σ q^{k−1−t}‖∇Φ(x_t)‖², q = 1 − μ/4L",
    alpha_is_inverse_L,
    eta_is_inverse_L,
    contracting_aid,
)
def squared_error_of_aid(r, s):
    k, E0 = s.constants, potential(r, s)[0]
    rate = 1 - 1 / (4 * k.kappa)
    start = k.L**2 * rate ** np.arange(len(r.gradient)) * E0**2
    drift = 3 * (s.beta * s.aid.C2) ** 2 * k.L**3 / k.mu
    return r.estimate_error**2, start + drift * discounted(rate, r.gradient**2)


@AID_LEMMAS.add(
    "Lemma 5.8: initialization", "E₀ ≤ M/L + M/μ + C₁‖y_0 − y*_0‖", alpha_is_inverse_L, eta_is_inverse_L
)
def initialization(r, s):
    c_y = max(r.warm_error[0], np.finfo(float).tiny) / s.constants.mu
    return potential(r, s)[:1], np.atleast_1d(s.aid.E0_bound(c_y))


@AID_LEMMAS.add("Lemma B.2: inner radius", "‖ŷ_k − y*_k‖ ≤ R_a", two_sequences)
def inner_radius(r, s):
    return r.y_error, two_sequence_contraction(s.constants, s.alpha, s.eta).R_a


@AID_LEMMAS.add("Lemma B.2: adjoint radius", "‖v̂_k − ṽ*_k‖ ≤ R_b", two_sequences)
def adjoint_radius(r, s):
    return r.v_error, two_sequence_contraction(s.constants, s.alpha, s.eta).R_b


@ITD_LEMMAS.add("Lemma 5.12: radius", "‖y_k⁰ − y*_k‖ ≤ R_y", short_alpha)
def radius(r, s):
    return r.warm_error, s.R_y


@ITD_LEMMAS.add("Lemma 5.13: hypergradient error", "‖∇̂Φ − ∇Φ‖ ≤ C₄‖ŷ_k − y*_k‖ + C₅", short_alpha)
def error_of_itd(r, s):
    C4, C5 = map(float, estimator_constants(s.constants, s.R_y, s.alpha))  # α need not be 1/L
    return r.estimate_error, C4 * r.y_error + C5


@ITD_LEMMAS.add(
    "Lemma 5.15a: inner error",
    "‖ŷ_k − y*_k‖ ≤ C₆‖ŷ_{k−1} − y*_{k−1}‖ + (Lβ/μ)‖∇Φ(x_{k−1})‖ + C₇",
    alpha_is_inverse_L,
    contracting_itd,
    first=1,
)
def inner_error_of_itd(r, s):
    at = replace(s.itd, beta=s.beta)
    drift = s.constants.kappa * s.beta
    return r.y_error[1:], at.C6 * r.y_error[:-1] + drift * r.gradient[:-1] + at.C7


@ITD_LEMMAS.add(
    "Lemma 5.15b: inner error, unrolled",
    "‖ŷ_k − y*_k‖ ≤ qᵏ‖ŷ_0 − y*_0‖ + (Lβ/μ)Σ q^{k−1−j}(‖∇Φ(x_j)‖ + C₅), q = 1 − μ/2L",
    alpha_is_inverse_L,
    contracting_itd,
)
def unrolled_inner_error(r, s):
    k, rate = s.constants, 1 - 1 / (2 * s.constants.kappa)
    start = rate ** np.arange(len(r.y_error)) * r.y_error[0]
    return r.y_error, start + k.kappa * s.beta * discounted(rate, r.gradient + s.itd.C5)


@ITD_LEMMAS.add(
    "Lemma 5.16: squared hypergradient error",
    "‖∇̂Φ − ∇Φ‖² ≤ 2C₄²qᵏ‖ŷ_0 − y*_0‖² + (6L³β²C₄²/μ³)Σ q^{k−1−j}(‖∇Φ(x_j)‖ + C₅)² + 2C₅², q = 1 − μ/4L",
    alpha_is_inverse_L,
    contracting_itd,
)
def squared_error_of_itd(r, s):
    k, C4, C5 = s.constants, s.itd.C4, s.itd.C5
    rate = 1 - 1 / (4 * k.kappa)
    start = 2 * C4**2 * rate ** np.arange(len(r.y_error)) * r.y_error[0] ** 2
    drift = 6 * k.kappa**3 * (s.beta * C4) ** 2
    return r.estimate_error**2, start + drift * discounted(rate, (r.gradient + C5) ** 2) + 2 * C5**2


@ITD_LEMMAS.add(
    "Lemma B.1: Jacobian error",
    "‖∇_x ŷ_k − ∇_x y*_k‖ ≤ (1 − αμ)‖∇_x y*_k‖ + αρ‖y_k⁰ − y*_k‖",
    short_alpha,
    dense,
)
def jacobian_error(r, s):
    k = s.constants
    return r.jacobian_error, (1 - s.alpha * k.mu) * r.jacobian + s.alpha * k.rho * r.warm_error


@PHI.add("Lemma A.1: ∇Φ is Lipschitz", "‖∇Φ(x_k) − ∇Φ(x_{k−1})‖ ≤ L_Φ‖x_k − x_{k−1}‖", first=1)
def lipschitz(r, s):
    return r.gradient_change[1:], s.constants.L_Phi * r.x_step[1:]


@PHI.add(
    "Theorems 5.9 and 5.17: descent",
    "Φ_{k+1} + (β/2 − β²L_Φ)‖∇Φ‖² ≤ Φ_k + (β/2 + β²L_Φ)‖∇̂Φ − ∇Φ‖²",
    half_over_smoothness,
)
def descent(r, s):
    slack = s.beta**2 * s.constants.L_Phi
    left = r.next_value + (s.beta / 2 - slack) * r.gradient**2
    return left, r.value + (s.beta / 2 + slack) * r.estimate_error**2


@PHI_BLOCKWISE.add(
    "Lemma A.1, block by block",
    "‖∇Φ(x_k) − ∇Φ(x_{k−1})‖ ≤ (Λ_xx + 2Λ_xy·L_xy/μ + Λ_yy·L_xy²/μ²)‖x_k − x_{k−1}‖",
    first=1,
)
def lipschitz_blockwise(r, s):
    return r.gradient_change[1:], s.blocks.L_Phi * r.x_step[1:]


@PHI_BLOCKWISE.add("exact gain: descent", "Φ_{k+1} + (β/2)‖∇Φ‖² ≤ Φ_k + (β/2)‖∇̂Φ − ∇Φ‖²", one_over_smoothness)
def exact_descent(r, s):
    left = r.next_value + s.beta / 2 * r.gradient**2
    return left, r.value + s.beta / 2 * r.estimate_error**2


@PHI_BLOCKWISE.add(
    "star: descent with the step kept",
    "Φ_{k+1} + (β/2)‖∇Φ‖² + (β/2)(1 − βL_Φ)‖∇̂Φ‖² ≤ Φ_k + (β/2)‖∇̂Φ − ∇Φ‖²",
    one_over_smoothness,
)
def kept_descent(r, s):
    # ‖∇̂Φ‖ = ‖x_{k+1} − x_k‖/β. The step of the last iteration is not measured.
    kept = (1 - s.beta * s.blocks.L_Phi) * (r.x_step[1:] / s.beta) ** 2
    left, right = (side[:-1] for side in exact_descent(r, s))
    return left + s.beta / 2 * kept, right
