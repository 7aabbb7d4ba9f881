"""Orders in κ under the paper's convention: L, M, ρ, gap and radii fixed, μ = L/κ."""

import numpy as np
import pytest

from bilevel import theory

KAPPA = np.geomspace(1e3, 1e6, 40)
GRID = theory.Constants(mu=1 / KAPPA, L=1.0, M=1.0, rho=1.0)


def slope(values):
    return np.polyfit(np.log(KAPPA), np.log(values), 1)[0]


def test_outer_step_sizes():
    assert slope(1 / theory.prior.aid(GRID).beta) == pytest.approx(6, abs=0.2)
    assert slope(1 / theory.aid(GRID).beta) == pytest.approx(5, abs=0.2)
    assert slope(1 / theory.sharp.aid(GRID).best_beta(1, 1.0)) == pytest.approx(5, abs=0.2)
    assert slope(1 / theory.tight.aid(GRID).best_beta(1, 1.0)) == pytest.approx(5, abs=0.2)
    assert slope(1 / theory.itd(GRID).beta) == pytest.approx(3, abs=0.2)
    assert slope(1 / theory.prior.itd(GRID, R_y=1.0).beta) == pytest.approx(3, abs=0.2)


def test_aid_bounds():
    """From ‖y₀ − y*₀‖ ≤ c_yμ and v₀ = 0, as Lemma 5.8 has it."""
    paper = theory.aid(GRID)
    assert slope(theory.prior.aid(GRID).bound(1, 1.0, GRID.mu)) == pytest.approx(6, abs=0.2)
    assert slope(paper.bound_from(1, 1.0, (0.0, paper.E0_bound()))) == pytest.approx(5, abs=0.2)
    assert slope(theory.sharp.aid(GRID).bound(1, 1.0, GRID.mu)) == pytest.approx(5, abs=0.2)
    assert slope(2 * paper.C0 * GRID.L**3 * paper.E0_bound() ** 2 * GRID.mu) < 5.2


def test_itd_inherent_errors():
    assert slope(theory.prior.itd(GRID, R_y=1.0).inherent_error) == pytest.approx(3, abs=0.2)
    assert slope(theory.itd(GRID, R_y=1.0).inherent_error) == pytest.approx(2, abs=0.2)
    assert slope(theory.sharp.itd(GRID, R_y=1.0).inherent_error) == pytest.approx(2, abs=0.2)
    assert slope(theory.tight.itd(GRID).inherent_error) == pytest.approx(2, abs=0.2)
    lower = theory.lower_bound(GRID)
    assert slope(lower.value) == pytest.approx(2, abs=0.2)
    assert slope(lower.strict) == pytest.approx(2, abs=0.2)


def test_the_vanishing_part_of_itd_is_of_order_three():
    paper, prior = theory.itd(GRID, R_y=1.0), theory.prior.itd(GRID, R_y=1.0)
    for certificate in (paper, prior):
        vanishing = certificate.bound(1, 1.0, 1.0) - certificate.inherent_error
        assert slope(vanishing) == pytest.approx(3, abs=0.2)


def test_a_quadratic_inner_problem_saves_one_order():
    """With ρ = 0 (C₀ = κ instead of κ²) Theorem 5.9 needs only β = Θ(κ⁻⁴), the earlier analysis Θ(κ⁻⁵)."""
    quadratic = theory.Constants(mu=1 / KAPPA, L=1.0, M=1.0, rho=0.0)
    assert slope(1 / theory.aid(quadratic).beta) == pytest.approx(4, abs=0.2)
    assert slope(1 / theory.prior.aid(quadratic).beta) == pytest.approx(5, abs=0.2)
