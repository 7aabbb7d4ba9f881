"""Certificates against plain NumPy runs on vectors: no code is shared with the solvers, none with the certificates."""

from dataclasses import fields

import numpy as np
import pytest
from cubic_problems import draw, run

from bilevel.theory import Blocks, star

CASES = {
    "AID": ("AID", 6, {}),
    "AID, N = 3, Q = 2": ("AID", 4, {"inner_steps": 3, "adjoint_steps": 2}),
    "AID, Q = 4": ("AID", 12, {"adjoint_steps": 4}),
    "SOBA": ("SOBA", 8, {}),
    "ITD": ("ITD", 8, {}),
}


def certificate(method, k, alpha, eta, counts):
    if method == "AID":
        return star.aid(k, alpha, eta, **counts)
    return star.soba(k, alpha, eta) if method == "SOBA" else star.itd(k, alpha)


def judged(case, nx, count=150):
    """The runs, and a function from blocks to the largest mean over its bound; step sizes and starts of all kinds."""
    method, steps, counts = CASES[case]
    rng = np.random.default_rng(nx)
    shorter = np.ones((2, count)) if method == "ITD" else rng.choice([1.0, 1.0, 0.5, 0.2, 1.02], (2, count))
    p, longest = draw(rng, count, nx, 2, reach=10 ** rng.uniform(-5, -4, (count, 1)), itd=method == "ITD")
    alpha, eta = longest * shorter
    taken = {"N": counts.get("inner_steps", 1), "Q": counts.get("adjoint_steps", 1)}
    share, beta = 10 ** rng.uniform(-1.5, 0.15, count), np.full(count, 1e-9)
    for _ in range(2):  # β for constants that are known after a run: from those of the run before
        k = run(p, method, alpha, eta, beta, steps, **taken).blocks
        beta = np.minimum(share * certificate(method, k, alpha, eta, counts).beta_max, 0.99 / k.L_Phi)
    found = run(p, method, alpha, eta, beta, steps, **taken)
    K = np.arange(1, steps + 1)[:, None]
    gap = found.phi[0] - found.phi[1:]  # what was descended: all that the proof uses
    mean = np.cumsum(found.squares, axis=0) / K

    def ratio(blocks):
        c = certificate(method, blocks, alpha, eta, counts)
        bound = c.bound(K, np.maximum(gap, 0.0), found.y_error, found.v_error, beta)
        assert np.mean(np.isfinite(bound)) > 0.8
        return np.max(np.where(gap > 0, mean / bound, 0.0))

    return found, ratio


@pytest.mark.slow
@pytest.mark.parametrize("nx", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_no_run_is_above_its_bound(case, nx):
    found, ratio = judged(case, nx)
    assert 0.8 < ratio(found.blocks) <= 1
    assert np.median(found.blocks.kappa) > 2


@pytest.mark.slow
def test_every_constant_is_needed():
    """Without third derivatives, or with half of another constant, some of the same runs are above their bound."""
    found, ratio = judged("AID", 2)
    k = found.blocks
    assert ratio(replace_in(k, rho_xxy=0, rho_xyy=0, rho_yyy=0)) > 1
    for name in ("L_xy", "f_xx", "f_xy"):
        assert ratio(replace_in(k, **{name: 0.5 * getattr(k, name)})) > 1, name


def replace_in(k, **changed):
    return Blocks(**{field.name: changed.get(field.name, getattr(k, field.name)) for field in fields(k)})


@pytest.mark.parametrize("mu", [0.2, 0.9])
@pytest.mark.parametrize("Q", [1, 2, 5])
@pytest.mark.parametrize("eta", [0.3, 1.0, 1.7, 1.95])
def test_the_weight_of_the_force_is_the_largest_over_the_spectrum(mu, Q, eta):
    """η_t = sup over μ ≤ h ≤ L of |Σ_{j<Q} η(1 − ηh)ʲ|, also for steps beyond 2/(L_yy + μ), whose modes alternate."""
    k = Blocks(mu, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    c = star.aid(k, eta=eta, adjoint_steps=Q)
    weight = c.system.p * c.weights[0] / (k.L_xy * k.Lambda_yy * c.system.r0)
    h = np.linspace(mu, 1, 1001)
    largest = np.max(np.abs(sum(eta * (1 - eta * h) ** j for j in range(Q))))
    assert largest <= weight * (1 + 1e-12)
    if eta * mu <= 1:
        assert weight == pytest.approx(largest)
