"""The semidefinite program for the exact worst case. Needs the extra `worst-case`; skipped without it."""

import numpy as np
import pytest

from bilevel import theory

pytest.importorskip("cvxpy")
pytest.importorskip("clarabel")

from certificates import searched
from worst_case import worst_case


def case(kappa, share=0.9):
    constants = theory.Constants(1 / kappa, 1.0, 1.0, 1.0)
    certificate = theory.star.aid(constants)
    return constants.blocks, certificate, share * certificate.beta_max


def test_one_exact_step_is_a_step_of_gradient_descent():
    """Φ(x₀) − Φ(x₁) ≥ β(1 − βL_Φ/2)‖∇Φ(x₀)‖², and Φ(x₀) − inf Φ ≥ ‖∇Φ(x₀)‖²/2L_Φ: both with equality."""
    blocks, c, beta = case(3.0)
    one = lambda **to: worst_case(blocks, c.alpha, c.eta, beta, steps=1, gap=2.0, **to)
    assert one() == pytest.approx(2 / (beta * (1 - beta * blocks.L_Phi / 2)), rel=1e-4)
    assert one(gap_to="infimum") == pytest.approx(2 * 2 * blocks.L_Phi, rel=1e-4)


def test_one_step_from_a_wrong_adjoint():
    """‖h₀ − ∇Φ(x₀)‖ ≤ E = L_xy·t·‖v₀ − v*‖, and Δ ≥ β⟨∇Φ, h⟩ − ½β²L_Φ‖h‖² is least for the shortest h, along ∇Φ."""
    blocks, c, beta = case(3.0)
    v_error, smooth = 0.5, beta * blocks.L_Phi
    E = blocks.L_xy * (1 - c.eta * blocks.mu) * v_error
    # With h = G − E and G > E the descent is β(G − E)(G − ½βL_Φ(G − E)): solve for the G at which it is the gap.
    gap = 1.0
    G = max(np.roots([1 - smooth / 2, smooth * E - E, -smooth * E**2 / 2 - gap / beta]).real)
    assert G > E
    found = worst_case(blocks, c.alpha, c.eta, beta, steps=1, gap=gap, v_error=v_error)
    assert found == pytest.approx(G**2, rel=1e-4)


@pytest.mark.parametrize(("kappa", "steps"), [(2.0, 2), (2.0, 4), (5.0, 3)])
def test_it_lies_between_what_runs_do_and_what_star_says(kappa, steps):
    blocks, c, beta = case(kappa)
    worst = worst_case(blocks, c.alpha, c.eta, beta, steps, 1.0)
    assert worst <= c.bound(steps, 1.0, 0.0, 0.0, beta) * (1 + 1e-4)
    actual, _ = searched(kappa, c.alpha, c.eta, beta, steps, np.random.default_rng(0), count=200)
    assert actual <= worst * (1 + 1e-4)
    assert actual >= 0.6 * worst  # the search is worth its name


def test_from_a_wrong_start_star_is_above_it_too():
    blocks, c, beta = case(4.0)
    start = {"y_error": 0.05, "v_error": 0.3}
    worst = worst_case(blocks, c.alpha, c.eta, beta, 3, 1.0, **start)
    assert worst_case(blocks, c.alpha, c.eta, beta, 3, 1.0) < worst
    assert worst <= c.bound(3, 1.0, **start, beta=beta) * (1 + 1e-4)


def test_an_unknown_gap_is_refused():
    blocks, c, beta = case(2.0)
    with pytest.raises(ValueError, match='"run" or "infimum", got \'lowest\''):
        worst_case(blocks, c.alpha, c.eta, beta, 1, 1.0, gap_to="lowest")
