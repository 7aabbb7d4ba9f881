"""Theorems 5.9 and 5.17: every constant against exact rational arithmetic, and what follows from them."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from bilevel import theory
from bilevel.theory import Constants

rationals = st.fractions(min_value=Fraction(1, 50), max_value=50, max_denominator=200)
ratios = st.fractions(min_value=1, max_value=200, max_denominator=50)
nonnegative = st.one_of(st.just(Fraction(0)), rationals)


def close(value, exact, rel=1e-12):
    return value == pytest.approx(float(exact), rel=rel)


def exact_aid(mu, L, M, rho):
    """Appendix definitions in exact arithmetic, α = η = 1/L."""
    C0 = rho * M / mu**2 + L / mu
    C1 = 4 * C0 * L / mu
    C2 = L * C0 / mu + rho * M / mu**2 + L / mu + L * C1 / mu
    C3 = L + rho * M / mu + C0 * L
    L_Phi = L + (2 * L**2 + rho * M**2) / mu + (2 * rho * L * M + L**3) / mu**2 + rho * L**2 * M / mu**3
    return C0, C1, C2, C3, L_Phi


@pytest.mark.slow
@given(mu=rationals, ratio=ratios, M=nonnegative, rho=nonnegative)
def test_aid_constants_and_their_closed_forms(mu, ratio, M, rho):
    L = mu * ratio
    C0, C1, C2, C3, L_Phi = exact_aid(mu, L, M, rho)
    # The closed polynomial forms of the appendix.
    assert (
        4 * L**3 / mu**3
        + 4 * L**2 * rho * M / mu**4
        + L**2 / mu**2
        + L * rho * M / mu**3
        + L / mu
        + rho * M / mu**2
    ) == C2
    assert L + rho * M / mu + rho * M * L / mu**2 + L**2 / mu == C3
    assert (L * mu + rho * M) * (L + mu) / mu**2 == C3
    assert 4 * L**2 * (L * mu + rho * M) / mu**3 == L * C1
    # Shorter forms used in our own proofs.
    assert C0 * (4 * ratio**2 + ratio + 1) == C2
    assert C0 * (L + mu) == C3
    certificate = theory.aid(Constants(float(mu), float(L), float(M), float(rho)))
    for name, exact in {"C0": C0, "C1": C1, "C2": C2, "C3": C3}.items():
        assert close(getattr(certificate, name), exact), name
    terms = {
        "smoothness": 1 / (8 * L_Phi),
        "inner contraction": C1 * mu / L / (4 * C2 * C3),
        "adjoint contraction": mu / L / (2 * L * C2),
        "error feedback": mu / (8 * C2 * L**2),
    }
    for name, exact in terms.items():
        assert close(certificate.beta_terms[name], exact), name
    beta = min(terms.values())
    assert close(certificate.beta, beta)
    A = Fraction(1, 2) - beta * L_Phi - (Fraction(1, 2) + beta * L_Phi) * 12 * (beta * C2 * L**2 / mu) ** 2
    assert Fraction(33, 128) <= A
    assert close(certificate.A, A, rel=1e-10)


@pytest.mark.slow
@given(mu=rationals, ratio=ratios, M=rationals, rho=rationals)
def test_the_appendix_expansions_of_beta_have_slips(mu, ratio, M, rho):
    """The right expansions, and that both printed ones differ from what they expand."""
    L = mu * ratio
    _, C1, C2, C3, _ = exact_aid(mu, L, M, rho)
    second_factor = L * mu**2 + rho * M * mu + rho * M * L + L**2 * mu
    polynomial = (
        4 * L**3 * mu + 4 * L**2 * rho * M + L**2 * mu**2 + L * mu * rho * M + L * mu**3 + rho * M * mu**2
    )
    inner, adjoint = C1 * mu / L / (4 * C2 * C3), mu / L / (2 * L * C2)
    assert inner == mu**4 * (rho * M + L * mu) / (polynomial * second_factor)
    assert adjoint == mu**5 / (2 * L**2 * polynomial)
    printed_inner = 4 * L**3 * mu + 4 * L**2 * rho * M + 2 * L**2 * mu**2 + 2 * L * mu * rho * M + L * mu**3
    printed_adjoint = 4 * L**3 * mu + 4 * L**2 * rho * M + L**2 * mu**2 + L * mu * rho * M + L * mu**3
    assert polynomial - printed_adjoint == rho * M * mu**2
    assert printed_inner - polynomial == L**2 * mu**2 + L * mu * rho * M - rho * M * mu**2
    assert printed_inner != polynomial != printed_adjoint


@pytest.mark.slow
@given(mu=rationals, ratio=ratios, M=nonnegative, rho=nonnegative)
def test_two_of_the_four_aid_terms_never_bind(mu, ratio, M, rho):
    """The fourth term is a quarter of the third, and below the second; the first binds only through ρM²."""
    L = mu * ratio
    certificate = theory.aid(Constants(float(mu), float(L), float(M), float(rho)))
    assert certificate.binding in ("smoothness", "error feedback")
    terms = certificate.beta_terms
    assert terms["adjoint contraction"] == pytest.approx(4 * terms["error feedback"])
    assert terms["inner contraction"] >= 4 * terms["error feedback"] * (1 - 1e-12)
    if L / mu >= M:
        assert certificate.binding == "error feedback"


def test_a_large_rho_M_squared_makes_smoothness_bind():
    certificate = theory.aid(Constants(1.0, [1.0, 1.0], [10.0, 0.1], 1.0))
    assert list(certificate.binding) == ["smoothness", "error feedback"]
    assert certificate.beta[0] == certificate.beta_terms["smoothness"][0]


@pytest.mark.slow
@given(mu=rationals, ratio=ratios, M=nonnegative, rho=nonnegative)
def test_itd_constants(mu, ratio, M, rho):
    L = mu * ratio
    R_y = mu * L * M / (2 * L**2 + rho * M)
    C4 = L + L + rho * M / L
    C5 = M * (1 - mu / L) * L / mu + rho * M * R_y / L
    L_Phi = exact_aid(mu, L, M, rho)[-1]
    terms = {
        "radius": mu**3 / (2 * L * (2 * L**2 + rho * M)),
        "smoothness": 1 / (8 * L_Phi),
        "error feedback": mu**2 / (16 * L**2 * C4),
    }
    beta = min(terms.values())
    constants = Constants(float(mu), float(L), float(M), float(rho))
    certificate = theory.itd(constants)
    assert close(certificate.R_y, R_y)
    assert close(certificate.C4, C4)
    assert pytest.approx(float(C5), rel=1e-12, abs=1e-15 * float(M * ratio)) == certificate.C5
    for name, exact in terms.items():
        assert close(certificate.beta_terms[name], exact), name
    assert close(certificate.beta, beta)
    # Dimensions: the first and the third term differ by the factor 8μ, which is not a pure number.
    assert terms["radius"] / terms["error feedback"] == 8 * mu
    assert close(certificate.C6, 1 - mu / L + L * beta * C4 / mu, rel=1e-9) or ratio == 1
    assert 1 - float(mu / L) / 2 + 1e-15 >= certificate.C6
    weight, feedback = beta / 2 + beta**2 * L_Phi, 48 * L**4 * beta**2 * C4**2 / mu**4
    A = beta / 2 - beta**2 * L_Phi - weight * feedback
    assert Fraction(33, 128) * beta <= A
    assert close(certificate.A, A, rel=1e-10)
    gap, a0, K = Fraction(3, 7), Fraction(2, 9), 1000
    B1, B2 = weight * C4**2 * 8 * L / mu * a0**2, weight * feedback * C5**2
    assert close(certificate.B1(float(a0)), B1, rel=1e-10)
    inherent = B2 / A + weight * 2 * C5**2 / A
    assert certificate.inherent_error == pytest.approx(float(inherent), rel=1e-9, abs=1e-25)
    bound = gap / (A * K) + B1 / (A * K) + inherent
    assert close(certificate.bound_from(K, float(gap), (float(a0), 0.0)), bound, rel=1e-9)
    # At the smallest R_y the printed step size just meets Lemma 5.12.
    if M > 0:
        assert close(theory.radius_beta(constants, float(R_y)), terms["radius"])


@pytest.mark.slow
@given(
    mu=rationals, ratio=ratios, M=nonnegative, rho=nonnegative, c_y=rationals, gap=rationals, eps=rationals
)
def test_aid_initialization_bound_and_complexity(mu, ratio, M, rho, c_y, gap, eps):
    L = mu * ratio
    C0, _, C2, _, L_Phi = exact_aid(mu, L, M, rho)
    E0 = M / L + M / mu + 4 * c_y * L * C0
    certificate = theory.aid(Constants(float(mu), float(L), float(M), float(rho)))
    assert close(certificate.E0_bound(float(c_y)), E0)
    beta = min(1 / (8 * L_Phi), mu / (8 * C2 * L**2))
    A = Fraction(1, 2) - beta * L_Phi - (Fraction(1, 2) + beta * L_Phi) * 12 * (beta * C2 * L**2 / mu) ** 2
    scaled = gap / (beta * A) + 4 * L**3 * (1 + 2 * beta * L_Phi) / (2 * mu * A) * E0**2
    assert close(certificate.bound_from(7, float(gap), (0.0, float(E0))), scaled / 7, rel=1e-9)
    cost = certificate.complexity(float(eps), float(gap), D_y=5.0, c_y=float(c_y))
    assert certificate.bound_from(float(cost.iterations), float(gap), (0.0, float(E0))) <= float(eps) * (
        1 + 1e-9
    )
    fewer = math.floor(cost.iterations * (1 - 1e-9)) - 1
    if fewer >= 1:
        assert certificate.bound_from(fewer, float(gap), (0.0, float(E0))) > float(eps) * (1 - 1e-9)
    assert cost.Gc == 3 * cost.iterations + cost.warmup
    assert cost.Mv == 2 * cost.iterations


@given(mu=st.floats(1e-2, 10), ratio=st.floats(1, 1e4), D_y=st.floats(1e-3, 1e6), c_y=st.floats(1e-3, 1e2))
def test_warmup_is_the_shortest_that_reaches_its_target(mu, ratio, D_y, c_y):
    constants = Constants(mu, mu * ratio, 0.5, 0.5)
    aid, itd = theory.aid(constants), theory.itd(constants)
    contraction = 1 - mpmath.mpf(constants.mu) / mpmath.mpf(constants.L)
    for steps, target in (
        (aid.warmup_steps(D_y, c_y), c_y * constants.mu),
        (itd.warmup_steps(D_y), itd.R_y),
    ):
        assert contraction**steps * D_y <= target * (1 + 1e-9)
        if steps > 0:
            assert contraction ** (steps - 1) * D_y > target * (1 - 1e-9)


def test_warmup_at_condition_number_one():
    """One step of length 1/L is exact when mu = L: no logarithm of zero."""
    certificate = theory.aid(Constants(1.0, 1.0, 0.1, 0.1))
    assert certificate.warmup_steps(D_y=100.0) == 1
    assert certificate.warmup_steps(D_y=0.5) == 0
    assert theory.itd(Constants(1.0, 1.0, 0.1, 0.0)).inherent_error == 0
    steps = theory.aid(Constants([1.0, 0.5], 1.0, 0.1, 0.1)).warmup_steps(100.0)
    assert list(steps) == [1, 8]  # 100/2⁸ = 0.39 ≤ mu = 0.5


@pytest.mark.slow
def test_a_grid_of_condition_numbers_agrees_with_scalar_calls():
    L = np.geomspace(1, 1e3, 1000)
    grid = Constants(1.0, L, 0.3, 0.2)
    aid, itd = theory.aid(grid), theory.itd(grid)
    prior_aid, prior_itd = theory.prior.aid(grid), theory.prior.itd(grid)
    sharp, tight = theory.sharp.aid(grid), theory.tight.itd(grid)
    columns = {
        "aid": aid.bound(100, 1.0, 0.1),
        "itd": itd.bound(100, 1.0, 0.001),
        "warm-up": aid.warmup_steps(3.0),
        "prior aid": prior_aid.bound(100, 1.0, 0.1),
        "prior itd": prior_itd.bound(100, 1.0, 0.001),
        "sharp": sharp.bound(100, 1.0, 0.1),
        "tight": tight.bound(100, 1.0, 0.1),
        "lower": theory.lower_bound(grid).value,
    }
    for i in range(0, 1000, 37):
        one = Constants(1.0, L[i], 0.3, 0.2)
        aid, itd = theory.aid(one), theory.itd(one)
        scalars = {
            "aid": aid.bound(100, 1.0, 0.1),
            "itd": itd.bound(100, 1.0, 0.001),
            "warm-up": aid.warmup_steps(3.0),
            "prior aid": theory.prior.aid(one).bound(100, 1.0, 0.1),
            "prior itd": theory.prior.itd(one).bound(100, 1.0, 0.001),
            "sharp": theory.sharp.aid(one).bound(100, 1.0, 0.1),
            "tight": theory.tight.itd(one).bound(100, 1.0, 0.1),
            "lower": theory.lower_bound(one).value,
        }
        for name, value in scalars.items():
            assert np.ndim(value) == 0
            assert columns[name][i] == pytest.approx(value, rel=1e-12), name
        assert theory.aid(grid).binding[i] == aid.binding


@pytest.mark.slow
@given(mu=rationals, ratio=ratios, M=rationals, rho=nonnegative)
def test_larger_constants_mean_smaller_steps_and_larger_sharp_bounds(mu, ratio, M, rho):
    """Step sizes fall with M and ρ. Of the bounds only the exact-gain ones are monotone: Theorem 5.9's prefactor A
    improves as β falls, which can lower its E₀ term."""
    mu, L, M, rho = float(mu), float(mu * ratio), float(M), float(rho)
    base, more = Constants(mu, L, M, rho), Constants(mu, L, [M * 1.5, M], [rho, rho + 0.5])
    for certify in (theory.aid, theory.itd, theory.prior.aid):
        assert np.all(certify(more).beta <= certify(base).beta * (1 + 1e-12))
    for analysis in (theory.sharp, theory.tight):
        low, high = (analysis.aid(k).bound_from(10, 1.0, (0.3, 0.2)) for k in (base, more))
        assert np.all(high >= low * (1 - 1e-9))


@pytest.mark.slow
@given(mu=rationals, ratio=ratios, M=rationals, rho=nonnegative)
def test_the_vanishing_part_halves_when_the_steps_double(mu, ratio, M, rho):
    constants = Constants(float(mu), float(mu * ratio), float(M), float(rho))
    aid, itd = theory.aid(constants), theory.itd(constants)
    assert aid.bound(20, 1.0, 1.0) == pytest.approx(aid.bound(10, 1.0, 1.0) / 2)
    vanishing = lambda K: itd.bound_from(K, 1.0, (1.0, 0.0)) - itd.inherent_error
    assume(vanishing(10) > 1e-6 * itd.inherent_error)
    assert vanishing(20) == pytest.approx(vanishing(10) / 2, rel=1e-6)


def test_iteration_counts_do_not_overflow():
    cost = theory.aid(Constants(1e-5, 1.0, 1.0, 1.0)).complexity(1e-6, 1.0)
    assert isinstance(cost.iterations, int)
    assert cost.iterations > 2**64
    assert cost.Mv == 2 * cost.iterations


def test_a_safety_factor_scales_beta():
    constants = Constants(0.1, 1.0, 0.1, 0.1)
    assert theory.aid(constants, c=0.25).beta == theory.aid(constants).beta / 4
    assert theory.itd(constants, c=0.5).beta == theory.itd(constants).beta / 2


CONSTANTS = Constants(0.1, 1.0, 0.1, 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.aid(CONSTANTS, c=0), "c must be positive, got 0"),
        (lambda: theory.aid(CONSTANTS, c=1.5), "c must be at most 1, got 1.5"),
        (lambda: theory.aid(CONSTANTS).bound(0, 1.0, 1.0), "steps must be positive, got 0"),
        (lambda: theory.aid(CONSTANTS).bound(2.5, 1.0, 1.0), "steps must be a whole number.*2.5"),
        (lambda: theory.aid(CONSTANTS).bound(5, -1.0, 1.0), "gap must be at least 0, got -1.0"),
        (lambda: theory.aid(CONSTANTS).bound(5, 1.0, -2.0), "y_error must be at least 0, got -2.0"),
        (lambda: theory.aid(CONSTANTS).bound(5, 1.0, 0.0, -2.0), "v_error must be at least 0, got -2.0"),
        (lambda: theory.aid(CONSTANTS).complexity(0.0, 1.0), "eps must be positive, got 0.0"),
        (lambda: theory.aid(CONSTANTS).warmup_steps(-1.0), "D_y must be at least 0, got -1.0"),
        (lambda: theory.aid(CONSTANTS).warmup_steps(1.0, 0.0), "c_y must be positive, got 0.0"),
        (lambda: theory.itd(CONSTANTS, R_y=1e-4), "R_y = 0.0001 is smaller than .*0.00497512.*raise R_y"),
        (lambda: theory.itd(CONSTANTS).bound(5, 1.0, -1.0), "y_error must be at least 0"),
        (lambda: theory.itd(Constants(0.1, 1.0, 0.0, 0.1)).warmup_steps(1.0), "target distance of 0"),
        (lambda: theory.sharp.aid(CONSTANTS).best_beta(5, 0.0), "gap must be positive, got 0.0"),
        (lambda: theory.sharp.aid(CONSTANTS).bound(5, 1.0, beta=-1.0), "beta must be positive"),
        (lambda: theory.sharp.itd(CONSTANTS, R_y=1e-4), "R_y = 0.0001 is smaller"),
        (lambda: theory.prior.aid(CONSTANTS).bound(5, 1.0, -1.0), "y_error must be at least 0"),
        (lambda: theory.star.aid(CONSTANTS).bound(5, 1.0, beta=0.0), "beta must be positive"),
        (lambda: theory.star.aid(CONSTANTS).best_beta(5, 1.0, slack=-1), "slack must be at least 0"),
        (lambda: theory.star.aid(CONSTANTS, alpha=2.5), "alpha = 2.5 does not contract.*2/L_yy = 2"),
        (lambda: theory.star.aid(CONSTANTS, inner_steps=0), "inner_steps must be a whole number"),
        (lambda: theory.analyses(CONSTANTS, "HOAG"), "no certificate is known for 'HOAG'.*AID, ITD, SOBA"),
        (
            lambda: theory.lower_bound(CONSTANTS, alpha=2.2),
            r"alpha must be at most 2/\(L \+ mu\), got 1.21 times",
        ),
        (lambda: theory.lower_bound(Constants([0.1, 0.2], 1, 1, 1)).instance(), "pass scalars"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()
