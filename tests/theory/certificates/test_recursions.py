"""Decoupled versus direct recursions, and the two-sequence lemma."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bilevel import theory
from bilevel.theory import Constants, recursions, two_sequence_contraction

rates = st.floats(0.01, 0.99)
seeds = st.integers(0, 2**32 - 1)


@given(r=rates, theta=st.floats(0.01, 10), seed=seeds)
def test_both_bounds_cover_a_real_recursion(r, theta, seed):
    """e_{k+1} = A e_k + δ_k with A = r·(rotation) and random δ: neither bound is ever below ‖e_k‖²."""
    rng = np.random.default_rng(seed)
    A = r * np.linalg.qr(rng.standard_normal((3, 3)))[0]
    delta = rng.standard_normal((30, 3)) * rng.random((30, 1)) ** 3
    e = [rng.standard_normal(3)]
    for d in delta:
        e.append(A @ e[-1] + d)
    squared = np.sum(np.array(e) ** 2, axis=-1)
    sizes, e0 = np.linalg.norm(delta, axis=-1), np.linalg.norm(e[0])
    assert np.all(squared <= recursions.decoupled(r, sizes, e0) * (1 + 1e-9))
    assert np.all(squared <= recursions.direct(r, sizes, e0, theta) * (1 + 1e-9))
    # Young's inequality can only lose: the decoupled bound is the lower envelope of all direct ones.
    assert np.all(recursions.decoupled(r, sizes, e0) <= recursions.direct(r, sizes, e0, theta) * (1 + 1e-9))


@given(r=rates)
def test_gains_coincide_at_the_best_theta_and_only_there(r):
    best = recursions.best_theta(r)
    assert recursions.direct_gain(r) == pytest.approx(recursions.decoupled_gain(r))
    for other in (0.5 * best, 2 * best):
        assert recursions.direct_gain(r, other) > recursions.decoupled_gain(r)
    assert recursions.direct_gain(0.8, theta=1.0) == np.inf  # 2·0.8² > 1: "2⟨a, b⟩ ≤ a² + b²" diverges


@pytest.mark.slow
@given(r=rates)
def test_gains_are_the_limits_of_the_sequences(r):
    steps = int(40 / (1 - r))
    persistent = np.ones(steps)
    assert recursions.decoupled(r, persistent)[-1] == pytest.approx(recursions.decoupled_gain(r), rel=1e-6)
    assert recursions.direct(r, persistent)[-1] == pytest.approx(recursions.direct_gain(r), rel=1e-6)
    pulse = np.zeros(steps)
    pulse[0] = 1
    decoupled, direct = recursions.impulse_energy(r)
    assert recursions.decoupled(r, pulse).sum() == pytest.approx(decoupled, rel=1e-6)
    assert recursions.direct(r, pulse).sum() == pytest.approx(direct, rel=1e-6)
    assert direct / decoupled == pytest.approx((1 + r) / (1 - r))


@given(ratio=st.floats(1.01, 1e3), weight=st.floats(0.1, 1e4))
def test_largest_adjoint_step_is_the_edge_of_contraction(ratio, weight):
    k = Constants(1.0, ratio, 0.0, 0.0)
    eta = recursions.largest_adjoint_step(k, weight)
    holds = lambda eta: (
        (weight + 2 * eta * k.L**2 / k.mu) * (1 - 1 / ratio) <= weight * (1 - eta * k.mu / 2) * (1 + 1e-12)
    )
    assert holds(eta)
    assert eta == 1 / k.L or not holds(eta * 1.001)


def test_the_weight_of_the_potential_decides_the_order_of_eta():
    kappa = np.geomspace(1e2, 1e5, 20)
    k = Constants(1 / kappa, 1.0, 1.0, 1.0)
    slope = lambda eta: np.polyfit(np.log(kappa), np.log(eta), 1)[0]
    assert slope(recursions.largest_adjoint_step(k, 1.0)) == pytest.approx(-2, abs=0.01)
    np.testing.assert_array_equal(recursions.largest_adjoint_step(k, 4 * kappa**2), 1.0)
    # The earlier certificate's η = μ²/(4L³) is within its own rule.
    assert np.all(1 / (4 * kappa**2) <= recursions.largest_adjoint_step(k, 1.0))


@pytest.mark.slow
@given(
    mu=st.floats(0.05, 5),
    ratio=st.floats(1, 50),
    M=st.floats(0, 5),
    rho=st.floats(0, 5),
    start=st.tuples(st.floats(0, 3), st.floats(0, 3)),
    seed=seeds,
)
def test_weighted_squares_sum_as_claimed(mu, ratio, M, rho, start, seed):
    """The two squared recursions of the earlier analysis with η = 1/L, iterated with equality, against Σδ."""
    k = Constants(mu, mu * ratio, M, rho)
    certificate = recursions.weighted_squares(k)
    slope, beta, kappa = k.L + rho * M / mu, certificate.beta, k.kappa
    G = np.random.default_rng(seed).random(40) ** 4
    potential = lambda A, B: 4 * kappa**2 * slope**2 * A + k.L**2 * B
    A, B, total = start[0] ** 2, start[1] ** 2, 0.0
    first = potential(A, B)
    for g in G:
        delta = potential(A, B)
        total += delta
        X = 2 * beta**2 * (g + 2 * delta)
        A = (1 - 1 / kappa) * A + kappa**3 * X
        B = (1 - 1 / (2 * kappa)) * B + 2 * slope**2 / (k.L * mu) * A
        B += 2 * kappa * (slope / mu) ** 2 * (1 + kappa) ** 2 * X
        claim = (1 - 1 / (4 * kappa)) * delta + 2 * certificate.W * beta**2 * g
        assert potential(A, B) <= claim * (1 + 1e-12)
    assert total <= 4 * kappa * (first + 2 * certificate.W * beta**2 * G.sum()) * (1 + 1e-12)
    assert 0.25 - 1e-12 <= certificate.A <= 0.5


def test_squares_first_reach_the_same_order():
    """β = Θ(κ⁻⁴) for ρM > 0 and Θ(κ⁻³) for ρM = 0: larger than Theorem 5.9's for every κ, smaller than `star`'s."""
    kappa = np.geomspace(1, 1e5, 200)
    for rho, order in ((1.0, 4), (0.0, 3)):
        k = Constants(1 / kappa, 1.0, 1.0, rho)
        beta = recursions.weighted_squares(k).beta
        assert np.all(theory.aid(k).beta < beta)
        gained = theory.star.aid(k, 1.0, 1.0).beta_max / beta
        assert np.all(gained > 1)
        assert gained[-1] == pytest.approx(np.sqrt(48), rel=0.01)  # the 7 of the page
        slope = np.polyfit(np.log(kappa[-50:]), np.log(beta[-50:]), 1)[0]
        assert slope == pytest.approx(-order, abs=0.02)
        bound = [recursions.weighted_squares(k).bound(10, 1.0), theory.prior.aid(k).bound(10, 1.0)]
        slopes = [np.polyfit(np.log(kappa[-50:]), np.log(values[-50:]), 1)[0] for values in bound]
        assert slopes == pytest.approx([order, order + 2], abs=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recursions.decoupled(1.0, [1.0]), r"r must lie in \[0, 1\), got 1.0"),
        (lambda: recursions.direct(0.5, [-1.0]), "perturbations must be at least 0, got -1.0"),
        (lambda: recursions.direct(0.5, [1.0], theta=0.0), "theta must be positive"),
        (lambda: recursions.best_theta(0.0), "undefined for r = 0"),
        (lambda: two_sequence_contraction(Constants(0.1, 1, 1, 1), eta=3.0), "eta must be at most 1/L.*3"),
        (lambda: two_sequence_contraction(Constants(0.1, 1, 1, 1), alpha=-1.0), "alpha must be positive"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
@given(
    mu=st.floats(0.05, 5),
    ratio=st.floats(1, 50),
    M=st.floats(0, 5),
    rho=st.floats(0.01, 5),
    steps=st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)),
    start=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    share=st.floats(0, 1),
)
def test_two_sequences_stay_within_their_radii(mu, ratio, M, rho, steps, start, share):
    k = Constants(mu, mu * ratio, M, rho)
    lemma = two_sequence_contraction(k, alpha=steps[0] / k.L, eta=steps[1] / k.L)
    a, b = lemma.worst_case(share * lemma.beta_max, start[0] * lemma.R_a, start[1] * lemma.R_b, 60)
    assert np.all(a <= lemma.R_a * (1 + 1e-12))
    assert np.all(b <= lemma.R_b * (1 + 1e-12))
    assert lemma.binding in ("inner drift", "adjoint to inner")
    if M > 0:
        terms = lemma.beta_terms
        assert terms["adjoint contraction"] == pytest.approx(8 * k.kappa**2 * terms["adjoint to inner"])
        assert terms["adjoint drift"] == pytest.approx(4 * k.kappa**2 * terms["inner drift"])


def test_the_radii_matter():
    """From five times R_a the quadratic term wins and the inner sequence grows without bound."""
    lemma = two_sequence_contraction(Constants(0.5, 1.0, 1.0, 1.0))
    a, _ = lemma.worst_case(lemma.beta_max, 5 * lemma.R_a, 0.0, 60)
    assert a[-1] > 100 * lemma.R_a


def test_the_printed_lemma_needs_a_bound_on_eta():
    """η = 5/μ, which the lemma as printed does not exclude: from a₀ = R_a, b₀ = 0 the first b leaves R_b.

    As recursions.md says.
    """
    mu, L, M, rho = 0.1, 1.0, 1.0, 1.0
    alpha, eta = 1 / L, 5 / mu
    c0, c_prime = rho * M / mu**2 + L / mu, M + rho * M / mu
    R_a, R_b = mu / (2 * rho), 2 * alpha * c0 * L / (eta * rho)
    beta = min(
        alpha * mu**3 / (8 * rho * L * c_prime),
        mu**3 * eta / (16 * rho * L**2 * c0),
        eta * mu / (2 * c0 * rho),
        alpha * mu * L / (2 * rho * c_prime),
    )
    a1 = (1 - alpha * mu) * R_a + alpha * rho / 2 * R_a**2 + L * beta * c_prime / mu
    b1 = alpha * c0 * L * a1 + c0 * beta * c_prime
    assert a1 <= R_a
    assert b1 > R_b


def test_rho_zero_leaves_everything_unlimited():
    lemma = two_sequence_contraction(Constants(0.1, 1.0, 1.0, 0.0))
    assert lemma.R_a == lemma.R_b == lemma.beta_max == np.inf
