"""Exact-gain certificates: the machinery against brute force, and the certificates against the paper's."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from measured import tables
from pages import ROOT

from bilevel import theory
from bilevel.theory import Constants
from bilevel.theory.certificates.gain import ClosedLoop, minimize_on_log_scale

unit = st.floats(0, 0.95)
size = st.floats(0.01, 5)
systems = st.builds(ClosedLoop, r0=unit, r1=unit, p=size, q0=size, q1=size, C5=st.floats(0, 2), beta_cap=size)
zero_or = lambda largest: st.one_of(st.just(0.0), st.floats(1e-6, largest))
constants = st.builds(
    lambda mu, ratio, M, rho: Constants(mu, mu * ratio, M, rho),
    st.floats(0.05, 10),
    st.floats(1, 300),
    zero_or(10),
    zero_or(10),
)


def respond(system, beta, drive, w):
    """The recursion with equality: the error e_k for k = 0..K−1 under a given ‖∇Φ(x_k)‖."""
    e = []
    for g in drive:
        e.append(w[0] + w[1] + system.C5)
        push = beta * (g + e[-1])
        w = (system.r0 * w[0] + system.q0 * push, system.p * w[0] + system.r1 * w[1] + system.q1 * push)
    return np.array(e)


@pytest.mark.slow
@given(system=systems, share=st.floats(0.05, 0.95), w=st.tuples(size, size))
def test_transient_is_the_energy_of_the_unforced_response(system, share, w):
    beta = share * system.beta_max
    F = np.array([[system.r0, 0], [system.p, system.r1]]) + beta * np.outer([system.q0, system.q1], [1, 1])
    energy, state = 0.0, np.array(w)
    while state.sum() ** 2 > 1e-18 * energy:
        energy += state.sum() ** 2
        state = F @ state
    assert system.transient(beta, *w) == pytest.approx(np.sqrt(energy), rel=1e-6)


@pytest.mark.slow
@given(system=systems, share=st.floats(0.05, 0.95), seed=st.integers(0, 2**32 - 1))
def test_gain_bounds_every_response_and_a_constant_one_attains_it(system, share, seed):
    beta = share * system.beta_max
    quiet = replace(system, C5=0.0)
    G = quiet.gain(beta)
    drive = np.random.default_rng(seed).random(60) ** 3
    response = respond(quiet, beta, drive, (0.0, 0.0))
    assert np.linalg.norm(response) <= G * np.linalg.norm(drive) * (1 + 1e-9)
    assert respond(quiet, beta, np.ones(4000), (0.0, 0.0))[-1] == pytest.approx(G, rel=1e-6)


@pytest.mark.slow
@given(
    system=systems,
    share=st.floats(0.05, 0.95),
    w=st.tuples(size, size),
    gap=st.floats(0.01, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_bound_covers_every_sequence_that_satisfies_the_descent_inequality(system, share, w, gap, seed):
    """Scale a random ‖∇Φ‖ sequence up until Σg² = 2gap/β + Σe² (worst case): its mean is within the bound."""
    beta = share * system.beta_max
    shape = np.random.default_rng(seed).random(50) ** 2
    excess = lambda t: (
        np.sum((t * shape) ** 2) - 2 * gap / beta - np.sum(respond(system, beta, t * shape, w) ** 2)
    )
    high = 1.0
    while excess(high) < 0 and high < 1e12:
        high *= 2
    low = 0.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    mean = np.mean((low * shape) ** 2)
    assert mean <= system.bound(beta, 50.0, gap, *w) * (1 + 1e-9)


@pytest.mark.slow
@given(k=constants)
def test_systems_are_the_lemmas_in_scaled_coordinates(k):
    """T/β = cᵀ(I − P)⁻¹q for the recursion in (‖ŷ − y*‖, ‖v̂ − ṽ*‖), by a matrix solve."""
    alpha = eta = 1 / k.L
    C0 = k.rho * k.M / k.mu**2 + k.L / k.mu
    c = np.array([k.L + k.rho * k.M / k.mu + C0 * k.L, k.L])
    inner, adjoint = 1 - alpha * k.mu, 1 - eta * k.mu
    drift = np.array([k.L / k.mu, C0 * (alpha * k.L + 1)])
    P = np.array([[inner, 0], [C0 * alpha * k.L, adjoint]])
    expected = c @ np.linalg.solve(np.eye(2) - P, drift)
    assert theory.sharp.aid(k).system.unit_gain == pytest.approx(expected, rel=1e-9)
    P_kept = np.array([[inner, 0], [adjoint * C0 * alpha * k.L, adjoint]])
    kept = c @ np.linalg.solve(np.eye(2) - P_kept, drift * [inner, adjoint])
    # Relative to the other one: at κ = 1 this gain is zero but for rounding.
    assert theory.tight.aid(k).system.unit_gain == pytest.approx(kept, rel=1e-9, abs=1e-12 * expected)


def test_starts_outside_the_radius_have_an_infinite_bound():
    """Theorem 5.17 and its kin speak of y₀ within R_y; the others of any start."""
    for name, certificate in theory.analyses(Constants(0.1, 1.0, 0.1, 0.1), "ITD").items():
        bound = certificate.bound(10, 1.0, y_error=[100.0, 0.001])
        assert np.isfinite(bound[1])
        assert np.isinf(bound[0]) == (name in ("earlier", "paper", "sharp"))


def test_uncertified_steps_have_an_infinite_bound():
    certificate = theory.sharp.aid(Constants(0.1, 1.0, 0.1, 0.1))
    assert np.isfinite(certificate.bound(10, 1.0, beta=0.99 * certificate.beta_max))
    assert certificate.bound(10, 1.0, beta=1.01 * certificate.beta_max) == np.inf
    assert certificate.bound(10, 1.0, beta=1e9) == np.inf


@pytest.mark.slow
@given(k=constants, gap=st.floats(1e-3, 1e3), a0=st.floats(0, 5), b0=st.floats(0, 5))
def test_best_beta_is_the_largest_whose_bound_is_within_a_tenth_of_the_lowest(k, gap, a0, b0):
    for analysis in (theory.sharp, theory.tight):
        certificate = analysis.aid(k)
        lowest = certificate.bound_from(1, gap, (a0, b0))
        others = certificate.beta_max * np.geomspace(1e-9, 1, 200)
        bounds = certificate.bound_from(1, gap, (a0, b0), others)
        assert np.all(lowest <= bounds * (1 + 1e-9))
        best = certificate.best_beta_from(1, gap, (a0, b0))
        assert certificate.bound_from(1, gap, (a0, b0), best) <= 1.1 * lowest * (1 + 1e-9)
        assert np.all(bounds[others > best * (1 + 1e-6)] > 1.1 * lowest * (1 - 1e-6))


@pytest.mark.slow
@given(k=constants, gap=st.floats(1e-3, 1e3), a0=st.floats(0, 5), b0=st.floats(0, 5), c=st.floats(0.01, 1))
def test_sharp_never_exceeds_theorem_1_and_tight_never_exceeds_sharp(k, gap, a0, b0, c):
    """Provable for every set of constants (documentation): already at the paper's own β, hence at the best one."""
    paper, sharp, tight = theory.aid(k, c), theory.sharp.aid(k), theory.tight.aid(k)
    at_paper_beta = sharp.bound_from(100, gap, (a0, b0), paper.beta)
    assert at_paper_beta <= paper.bound_from(100, gap, (a0, b0)) * (1 + 1e-9)
    assert sharp.bound_from(100, gap, (a0, b0)) <= at_paper_beta * (1 + 1e-9)
    assert tight.bound_from(100, gap, (a0, b0)) <= sharp.bound_from(100, gap, (a0, b0)) * (1 + 1e-9)


@pytest.mark.slow
@given(
    k=constants,
    gap=st.floats(1e-3, 1e3),
    share=st.floats(0, 1),
    K=st.integers(1, 10**9),
    c=st.floats(0.01, 1),
)
def test_sharp_never_exceeds_theorem_2_and_inherent_errors_are_ordered(k, gap, share, K, c):
    paper, sharp, tight = theory.itd(k, c=c), theory.sharp.itd(k), theory.tight.itd(k)
    s0 = share * paper.R_y
    assert sharp.bound(K, gap, s0, beta=paper.beta) <= paper.bound(K, gap, s0) * (1 + 1e-9)
    assert sharp.bound(K, gap, s0) <= paper.bound(K, gap, s0) * (1 + 1e-9)
    assert sharp.inherent_error <= paper.inherent_error
    assert tight.inherent_error <= sharp.inherent_error * (1 + 1e-12)
    assert sharp.inherent_error == pytest.approx(paper.C5**2)


@pytest.mark.slow
@given(k=constants)
def test_inherent_error_is_the_limit_of_the_bound(k):
    """As K → ∞ with the best β for each K: C₅², which for `tight` is the lower bound itself."""
    for certificate in (theory.sharp.itd(k), theory.tight.itd(k)):
        K, beta = 1e22, 1e-6 * certificate.beta_max
        # From s² ≤ E + (Gs + J)² follows s ≤ (√E + J)/(1 − G); here G ≤ 10⁻⁶ and E = 2·gap/(βK) is tiny.
        root = (np.sqrt(2 / (beta * K)) + (1 + 1e-6) * certificate.C5) / (1 - 1e-6)
        assert certificate.inherent_error <= certificate.bound(K, 1.0, 0.0) <= root**2
    assert theory.tight.itd(k).inherent_error == pytest.approx(theory.lower_bound(k).value, rel=1e-9)


def test_limit_at_a_fixed_step():
    certificate = theory.tight.itd(Constants(0.2, 1.0, 0.3, 0.4))
    beta = 0.3 * certificate.beta_max
    G = certificate.system.gain(beta)
    assert certificate.limit(beta) == pytest.approx(certificate.C5**2 * ((1 + G) / (1 - G)) ** 2)
    assert certificate.bound(10**12, 1.0, 0.1, beta=beta) == pytest.approx(certificate.limit(beta), rel=1e-4)


def test_paper_problem():
    """μ = 0.1, valid M = 0.1√2: the advantage over Theorem 5.9 that docs/theory/sharp.md has in its last table."""
    page = tables((ROOT / "docs/theory/sharp.md").read_text())[-1]
    kappa, mu, m, K = np.array(page.head[1:], float), 0.1, 0.1, 10_000
    L = mu * kappa
    k = Constants(mu, L, m * np.sqrt(2), 0.1)
    Z = np.stack([L, np.full_like(L, mu)])
    # x₀ = 1, y₀ = y*(x₀), v₀ = 0; Φ is quadratic with Hessian Z and minimizer −L·m·Z⁻²1.
    gap = 0.5 * np.sum(Z * (1 + L * m / Z**2) ** 2, axis=0)
    start = 0.0, np.linalg.norm((1 - Z / L) * m / Z, axis=0)
    paper = theory.aid(k)
    found = []
    for c in (theory.sharp.aid(k), theory.tight.aid(k)):
        found.append(c.best_beta_from(K, gap, start, slack=0.0) / paper.beta)
        found.append(paper.bound_from(K, gap, start) / c.bound_from(K, gap, start))
    for (_, *printed), values in zip(page.rows, found, strict=True):
        for text, value in zip(printed, values, strict=True):
            number = text.strip(" ×÷")
            decimals = len(number.partition(".")[2])
            assert f"{value:.{decimals}f}" == number, (text, value)


def test_condition_number_one_is_plain_gradient_descent():
    """κ = 1: one inner step is exact, nothing feeds back, and `tight` is the bound 2·gap·L_Φ/K of gradient descent."""
    k = Constants(2.0, 2.0, 0.7, 0.3)
    for certificate in (theory.tight.aid(k), theory.sharp.aid(k), theory.sharp.itd(k)):
        assert np.isfinite(certificate.bound(10, 1.0))
    assert theory.tight.aid(k).bound(10, 1.5) == pytest.approx(2 * 1.5 * k.L_Phi_blockwise / 10)
    assert theory.tight.itd(k).inherent_error == 0


def test_search_finds_known_minima_elementwise():
    target = np.array([1e-9, 1e-4, 0.5])
    found = minimize_on_log_scale(lambda b: np.log(b / target) ** 2, np.ones(3))
    np.testing.assert_allclose(found, target, rtol=1e-6)
    assert minimize_on_log_scale(lambda b: -b, 2.0) == 2.0
