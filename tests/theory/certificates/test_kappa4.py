"""The tables of docs/theory/kappa4.md: what each analysis promises for large κ, and the run by its closed form."""

import re

import numpy as np
import pytest
from measured import tables
from pages import ROOT

from bilevel import theory

ORDERS, RUN = tables((ROOT / "docs/theory/kappa4.md").read_text())


def multiple(cell, kappa):
    """The value of "$32\\kappa^5$" or "$\\kappa^3/4$"."""
    factor, power, part = re.fullmatch(r"\$(\d*)\\kappa\^(\d)(?:/(\d))?\$", cell).groups()
    return float(factor or 1) * kappa ** int(power) / float(part or 1)


def test_every_analysis_for_large_kappa():
    """One over the largest β, and K times the bound from an exact start, in units of λ = 1 + κ."""
    kappa, K = 1e5, 1e40
    k = theory.Constants(1 / kappa, 1.0, 1.0, 1.0)
    made = theory.analyses(k)
    limit = theory.limit.aid(k)
    rows = [
        [made["earlier"]],
        [made["paper"]],
        [made["sharp"], made["tight"]],
        [theory.star.aid(k, 1.0, 1.0)],
        [made["star"]],
    ]
    for (_, beta, bound, _), certificates in zip(ORDERS.rows, rows, strict=False):
        for c in certificates:
            assert 1 / c.beta_max / (1 + kappa) == pytest.approx(multiple(beta, kappa), rel=0.01)
            lowest = K * c.bound(K, 1.0, 0.0, 0.0, c.best_beta(K, 1.0, 0.0, 0.0, slack=0.0))
            assert lowest / (1 + kappa) == pytest.approx(multiple(bound, kappa), rel=0.01)
    for c in rows[2]:
        assert c.best_beta(K, 1.0, 0.0, 0.0, slack=0.0) / c.beta_max == pytest.approx(2 / 3, rel=0.01)
    _, beta, bound, _ = ORDERS.rows[-1]
    assert 1 / limit.beta / (1 + kappa) == pytest.approx(multiple(beta, kappa), rel=0.01)
    assert K * limit.rate(K, 1.0) / (1 + kappa) == pytest.approx(multiple(bound, kappa), rel=0.01)


def squares(A, c, u, steps):
    """Σ_{k<steps} (cᵀAᵏu)²: the sum of n squares is a quadratic form, and that of 2n is made of two of it."""
    form, power = np.zeros_like(A), np.eye(len(A))
    for bit in f"{steps:b}":
        form, power = form + power.T @ form @ power, power @ power
        if bit == "1":
            form, power = np.outer(c, c) + A.T @ form @ A, A @ power
    return u @ form @ u


def test_the_run_of_the_paper_problem():
    """f = ½xᵀZx + 0.1·1ᵀy, g = ½yᵀZy − L·xᵀy: v follows 0.1/z and x each on its own, whatever y does."""
    mu, L, m, steps = 0.1, 0.5, 0.1, 20_000
    Z = np.array([L, mu])
    gap = 0.5 * np.sum(Z * (1 + L * m / Z**2) ** 2)
    v_error = np.linalg.norm(m / Z)
    analyses = theory.analyses(theory.Constants(mu, L, m * np.sqrt(2), 0.1)).values()
    for (_, *shown), c in zip(RUN.rows, analyses, strict=True):
        beta = min(c.best_beta(steps, gap, 0.0, v_error), c.beta_max)
        total = 0.0
        for z in Z:
            v = np.array([0.0, 1 - c.eta * z, c.eta * m])  # of (x, v, 1)
            x = np.array([1 - beta * z, 0.0, 0.0]) - beta * L * v
            slope = np.array([z, 0.0, L * m / z])
            total += squares(np.stack([x, v, [0, 0, 1]]), slope, np.array([1.0, 0.0, 1.0]), steps)
        for text, value in zip(
            shown, (beta, total / steps, c.bound(steps, gap, 0.0, v_error, beta)), strict=True
        ):
            digits = len(text.split("e")[0].replace(".", "").lstrip("0"))
            assert float(f"{value:.{digits - 1}e}") == float(text)


def test_what_one_inner_error_is_charged():
    """The sums that the page names, λκ(κ² + 1) at ŷ and λκ² at y*, of systems that are summed by (I − P)⁻¹."""
    kappa = 20.0
    k, lam = theory.Constants(1 / kappa, 1.0, 1.0, 1.0), 1 + kappa
    for c, stated in (
        (theory.tight.aid(k), lam * kappa * (kappa**2 + 1)),
        (theory.star.aid(k, 1.0, 1.0), lam * kappa**2),
    ):
        system, (weight, _) = c.system, c.weights
        P, out = np.array([[system.r0, 0.0], [system.p, system.r1]]), np.array([system.c0, 1.0])
        assert out @ np.linalg.solve(np.eye(2) - P, [weight, 0.0]) == pytest.approx(stated, rel=0.01)
