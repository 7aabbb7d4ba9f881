"""The earlier analysis: its squared recursions iterated with equality stay below its closed-form sums."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bilevel import theory
from bilevel.theory import Constants

zero_or = lambda largest: st.one_of(st.just(0.0), st.floats(1e-6, largest))
constants = st.builds(
    lambda mu, ratio, M, rho: Constants(mu, mu * ratio, M, rho),
    st.floats(0.05, 10),
    st.floats(1, 30),
    zero_or(10),
    zero_or(10),
)
seeds = st.integers(0, 2**32 - 1)
errors = st.floats(0, 3)


@pytest.mark.slow
@given(k=constants, a0=errors, b0=errors, seed=seeds)
def test_aid_potential_sums_as_claimed(k, a0, b0, seed):
    """Iterate the two squared recursions (Young's inequality already applied, displacement at its largest):

    A' = (1 − αμ)A + κ²/(αμ)·X,  B' = (1 − ημ/2)B + (2ηλ²/μ)A' + (2/(ημ))C₀²(1 + κ)²X,  X = 2β²(G + 2δ),
    δ = λ²A + L²B, and compare Σδ with 16κ³(δ₀ + 2Wβ²ΣG).
    """
    certificate = theory.prior.aid(k)
    alpha, eta, beta = certificate.alpha, certificate.eta, certificate.beta
    slope, C0 = k.L + k.rho * k.M / k.mu, k.rho * k.M / k.mu**2 + k.L / k.mu
    G = np.random.default_rng(seed).random(40) ** 4
    A, B, total = a0**2, b0**2, 0.0
    delta0 = slope**2 * A + k.L**2 * B
    for g in G:
        delta = slope**2 * A + k.L**2 * B
        total += delta
        X = 2 * beta**2 * (g + 2 * delta)
        A = (1 - alpha * k.mu) * A + k.kappa**2 / (alpha * k.mu) * X
        B = (1 - eta * k.mu / 2) * B + 2 * eta * slope**2 / k.mu * A
        B += 2 / (eta * k.mu) * C0**2 * (1 + k.kappa) ** 2 * X
        after = slope**2 * A + k.L**2 * B
        one_step = (1 - eta * k.mu / 4) * delta + 2 * certificate.W * beta**2 * g
        assert after <= one_step * (1 + 1e-12)
    claimed = 16 * k.kappa**3 * (delta0 + 2 * certificate.W * beta**2 * G.sum())
    assert total <= claimed * (1 + 1e-12)


@pytest.mark.slow
@given(k=constants, a0=errors, seed=seeds)
def test_itd_error_sums_as_claimed(k, a0, seed):
    certificate = theory.prior.itd(k)
    t, beta = 1 / k.kappa, certificate.beta
    G = np.random.default_rng(seed).random(40) ** 4
    A, total = a0**2, 0.0
    for g in G:
        error = (1 + t) * certificate.C4**2 * A + (1 + k.kappa) * certificate.C5**2
        total += error
        A = (1 - t) * A + k.kappa**3 * 2 * beta**2 * (g + error)
    theta = certificate.feedback
    assert theta <= 0.5 + 1e-12
    claimed = 2 * k.kappa * (1 + t) * certificate.C4**2 * a0**2 + theta * G.sum()
    claimed += (1 + theta) * len(G) * (1 + k.kappa) * certificate.C5**2
    assert total <= claimed * (1 + 1e-12)


@given(t=st.floats(1e-6, 1))
def test_the_young_constants_of_the_derivation(t):
    """With t = αμ or ημ in (0, 1]: the four inequalities that the documentation uses."""
    slack = 1 + 1e-12
    assert (1 - t) ** 2 * (1 + t) <= (1 - t) * slack
    assert (1 - t) ** 2 * (1 + 1 / t) <= slack / t
    assert (1 - t) ** 2 * (1 + t) * (1 + t / 2) <= (1 - t / 2) * slack
    assert (1 - t) ** 2 * (1 + t) * (1 + 2 / t) <= slack * 2 / t


@given(k=constants)
def test_step_sizes_are_never_longer_than_the_papers_where_feedback_limits_both(k):
    earlier, paper = theory.prior.aid(k), theory.aid(k)
    if paper.binding == "error feedback":
        assert earlier.beta <= paper.beta
    assert earlier.eta <= 1 / (4 * k.L) * (1 + 1e-12)


def test_initial_adjoint_error_bound_covers_a_step_from_zero():
    """v̂₀ − v*₀ = −(I − ηH)v*₀ + η(∇_y f(ŷ) − Hv*₀), here in one dimension and at its worst signs."""
    k = Constants(0.5, 2.0, 0.8, 0.3)
    certificate = theory.prior.aid(k)
    a0 = 0.4
    H_star, H_hat = k.mu + k.rho * a0, k.mu  # curvature falls by rho per unit between y* and ŷ
    v_star = -k.M / H_star
    f_hat = H_star * v_star + k.L * a0
    v_hat = certificate.eta * f_hat
    inner, adjoint = certificate.errors(a0 / (1 - 1 / k.kappa), None)
    assert inner == pytest.approx(a0)
    assert abs(v_hat - v_star) <= adjoint * (1 + 1e-12)
    assert certificate.errors(0.0, None)[1] == pytest.approx((1 - certificate.eta * k.mu) * k.M / k.mu)
    assert H_hat < H_star
