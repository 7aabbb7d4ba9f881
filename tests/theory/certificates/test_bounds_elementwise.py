"""A bound for arrays is the bound for every entry, and the best β is one that has a bound."""

import numpy as np
import pytest

from bilevel import theory

KAPPA = np.array([1.5, 4.0, 20.0])
CASES = [
    (method, name)
    for method in ("AID", "ITD", "SOBA")
    for name in theory.analyses(theory.Constants(1, 2, 1, 1), method)
]


def certificate(method: str, name: str, kappa) -> theory.Certificate:
    return theory.analyses(theory.Constants(0.1, 0.1 * kappa, 0.1, 0.1), method)[name]


@pytest.mark.parametrize(("method", "name"), CASES)
@pytest.mark.parametrize(
    "K", [np.array([3, 30, 300]), np.array([5, 500])]
)  # as many as there are shares, and fewer
def test_bounds_are_elementwise_in_steps_and_constants(method, name, K):
    grid = certificate(method, name, KAPPA)
    beta = 0.5 * grid.beta_max
    bounds = grid.bound(K[:, None], gap=2.0, v_error=0.3, beta=beta)
    assert bounds.shape == (len(K), len(KAPPA))
    for j, kappa in enumerate(KAPPA):
        one = certificate(method, name, kappa)
        each = [one.bound(k, gap=2.0, v_error=0.3, beta=beta[j]) for k in K]
        np.testing.assert_allclose(bounds[:, j], each, rtol=1e-12)
        np.testing.assert_allclose(one.bound(K, gap=2.0, v_error=0.3, beta=beta[j]), each, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), CASES)
def test_the_best_beta_is_certified_and_costs_no_more_than_its_slack(method, name):
    grid = certificate(method, name, np.geomspace(1.5, 20, 16))
    gap, K = np.geomspace(0.1, 10, 16), 100
    lowest, taken = grid.bound(K, gap), grid.bound(K, gap, beta=grid.best_beta(K, gap, slack=0.1))
    assert np.all(np.isfinite(taken))
    assert np.all(taken <= 1.1 * lowest * (1 + 1e-12))
