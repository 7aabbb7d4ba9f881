"""Constants: validation, broadcasting, and the smoothness of Φ."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bilevel.theory import Constants

positive = st.floats(1e-3, 1e3)
nonnegative = st.floats(0, 1e2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 1.0, 1.0), r"mu must be positive, got 0.0.*strong convexity.*ridge"),
        ((-0.1, 1.0, 1.0, 1.0), r"mu must be positive, got -0.1"),
        ((2.0, 1.0, 1.0, 1.0), r"mu = 2.0 exceeds L = 1.0.*swapped"),
        ((0.1, -1.0, 1.0, 1.0), r"L must be positive, got -1.0.*Lipschitz"),
        ((0.1, 1.0, -1.0, 1.0), r"M must be at least 0, got -1.0.*gradient norm of f"),
        ((0.1, 1.0, 1.0, -2.0), r"rho must be at least 0, got -2.0.*second derivatives"),
        ((0.1, np.inf, 1.0, 1.0), r"L must be finite, got inf"),
        ((np.nan, 1.0, 1.0, 1.0), r"mu must be finite, got nan"),
        (([0.1, 2.0], 1.0, 1.0, 1.0), r"mu = 2.0 exceeds L = 1.0"),
        (([0.1, -3.0], 1.0, 1.0, 1.0), r"mu must be positive, got -3.0"),
        (([0.1, 0.2], [1.0, 1.0, 1.0], 1.0, 1.0), r"broadcast.*mu \(2,\), L \(3,\)"),
    ],
)
def test_bad_constants_are_refused_with_a_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        Constants(*arguments)


@pytest.mark.parametrize("value", ["0.1", 1 + 2j, None, True])
def test_constants_must_be_real_numbers(value):
    with pytest.raises(TypeError, match="M must be a real number"):
        Constants(0.1, 1.0, value, 0.1)


def test_scalars_stay_scalars_and_arrays_broadcast():
    one = Constants(1, 2, 3, 4)
    assert all(type(value) is float for value in (one.mu, one.L, one.M, one.rho, one.kappa, one.L_Phi))
    grid = Constants(mu=0.1, L=np.linspace(0.1, 2, 7), M=1.0, rho=np.array([[0.0], [1.0]]))
    assert grid.L_Phi.shape == (2, 7)
    assert grid.L_Phi.dtype == np.float64
    assert grid.L_Phi[1, 3] == Constants(0.1, grid.L[3], 1.0, 1.0).L_Phi


@pytest.mark.slow
@given(mu=positive, ratio=st.floats(1, 1e3), M=nonnegative, rho=nonnegative)
def test_printed_smoothness_covers_joint_lipschitz_constants(mu, ratio, M, rho):
    """Derivation with joint constants gives (1 + κ)√(1 + κ²)(L + ρM/μ); the printed L_Φ is never below it."""
    k = Constants(mu, mu * ratio, M, rho)
    joint = (1 + k.kappa) * np.sqrt(1 + k.kappa**2) * (k.L + rho * M / mu)
    assert joint <= k.L_Phi * (1 + 1e-12)


@given(mu=positive, ratio=st.floats(1, 1e3), M=nonnegative, rho=nonnegative)
def test_blockwise_smoothness_differs_in_one_term(mu, ratio, M, rho):
    k = Constants(mu, mu * ratio, M, rho)
    expected = k.L_Phi + rho * M / mu - rho * M**2 / mu
    assert k.L_Phi_blockwise == pytest.approx(expected, rel=1e-9)


def test_smoothness_bounds_the_curvature_of_a_problem_with_known_phi():
    """f = p·y, g = ½mu·y² + (L − mu)·log cosh y − L·x·y: compare |Φ''| on a grid, by central differences."""
    mu, L, p = 0.5, 2.0, 0.7
    y = np.linspace(-3, 3, 20001)
    x = (mu * y + (L - mu) * np.tanh(y)) / L  # y is y*(x), so Φ(x) = p·y
    slope = np.gradient(p * y, x)
    curvature = np.abs(np.gradient(slope, x))[5:-5].max()
    k = Constants(mu, L, p, (L - mu) * 4 / (3 * np.sqrt(3)))
    assert 0.01 * k.L_Phi < curvature <= k.L_Phi
