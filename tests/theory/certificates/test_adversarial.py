"""The problems that `benchmarks/certificates.py` makes against certificates are what they are said to be.

That no run is above its bound is judged by the benchmark itself, which ends with an error otherwise; with `--quick` it
is run by tests/docs/test_measured.py.
"""

from functools import partial

import adversaries
import jax
import numpy as np
import pytest
import random_problems
from adversaries import Bounds, Choices
from certificates import CASES, SHARES, Case, against, judge, measured
from measured import MEASURED, Record
from pages import ROOT

import bilevel as bl
from bilevel import theory

STEPS = 40


def made_against(case, rng, n, share):
    """Problems with κ up to 1000, and what became of their runs."""
    kappa = np.exp(rng.uniform(0, np.log(1000), n))
    k, choices = Bounds.random(rng, kappa), Choices.random(rng, n)
    certificate, beta, problems, covered = against(case, k, choices, share, STEPS)
    return k, certificate, beta, problems, covered


def test_the_page_counts_its_runs():
    (table,) = Record(MEASURED / "certificates.md").tables
    runs, violations = np.array([row[-2:] for row in table.rows], int).T
    assert len(runs) == len(CASES) * len(SHARES)
    assert not violations.any()
    assert f"{runs.sum():,} runs" in (ROOT / "docs/theory/worst-case.md").read_text()


def test_a_quarter_of_the_constants_is_not_enough():
    """The checks can fail: with a quarter of the bounds on f, runs are above what is then no bound."""
    rng = np.random.default_rng(2)
    k, _, _, _, _ = made_against(Case("star", "AID"), rng, 60, 0.5)
    halved = Bounds(**vars(k) | {name: vars(k)[name] / 4 for name in ("f_xx", "f_xy", "f_yy", "M_y")})
    certificate = Case("star", "AID").certificate(halved, halved.M_y, 0 * k.mu)
    beta = 0.9 * certificate.beta_max
    problems = Choices.random(rng, 60).against(k, beta, STEPS)
    squares, values, inside = measured(
        Case("star", "AID"), certificate.alpha, certificate.eta, beta, problems, STEPS
    )
    ratio = judge(certificate, beta, squares, values, inside, problems.y_error, problems.v_error)
    assert ratio.min() < 1


@pytest.mark.slow
def test_constants_hold_on_the_box_and_are_attained():
    """Second derivatives are linear in x and y, but for M_y: the corners of the box are enough."""
    rng = np.random.default_rng(3)
    k, _, _, problems, _ = made_against(Case("star", "AID"), rng, 40, 0.5)
    signs = np.array([[1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0]])[..., None]
    x, y = signs[0] * problems.X, signs[1] * problems.Y

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, None, None))
    @jax.vmap
    def second(x, y, inner, outer):
        of = lambda function, data: jax.hessian(function, argnums=(0, 1))(x, y, data)
        (_, g_xy), (_, g_yy) = of(adversaries.g, inner)
        (f_xx, f_xy), (_, f_yy) = of(adversaries.f, outer)
        return g_yy, g_xy, f_xx, f_xy, f_yy, jax.grad(adversaries.f, argnums=1)(x, y, outer)

    g_yy, *blocks, f_y = map(np.asarray, second(x, y, problems.inner, problems.outer))
    assert np.all(g_yy >= k.mu * (1 - 1e-12))
    assert np.all(g_yy <= k.L_yy * (1 + 1e-12))
    ends = np.minimum(g_yy.min(axis=0) / k.mu - 1, 1 - g_yy.max(axis=0) / k.L_yy)
    np.testing.assert_allclose(ends, 0, atol=1e-12)
    for block, bound in zip(blocks, (k.L_xy, k.f_xx, k.f_xy, k.f_yy), strict=True):
        np.testing.assert_allclose(np.abs(block).max(axis=0), bound, rtol=1e-12)
    assert np.all(np.abs(f_y) <= k.M_y * (1 + 1e-12))


@pytest.mark.slow
def test_closed_forms_are_those_of_newtons_method():
    rng = np.random.default_rng(4)
    _, _, _, problems, _ = made_against(Case("star", "AID"), rng, 40, 0.5)
    x = problems.x0 + 0.1 * problems.X
    exact = lambda x, *data: theory.exact(adversaries.PROBLEM, x, 0 * x, bl.Batch(*data))
    star = jax.jit(jax.vmap(exact))(x, problems.inner, problems.outer)
    y = problems.y_star(x)
    np.testing.assert_allclose(y, star.y, rtol=1e-9)
    np.testing.assert_allclose(problems.v_star(x), star.v, rtol=1e-9)
    parts = np.abs(problems.outer.p * x) + np.abs(problems.outer.m * y)  # of which Φ is a difference
    np.testing.assert_allclose(problems.value(x) / parts, star.value / parts, atol=1e-12)
    scale = np.abs(problems.outer.p)
    np.testing.assert_allclose(problems.slope(x) / scale, star.hypergradient / scale, atol=1e-9)


@pytest.mark.slow
def test_random_constants_hold_at_random_points():
    rng = np.random.default_rng(5)
    k, inner, outer, x, *_ = random_problems.sample(rng, 40)
    y, along = rng.standard_normal(x.shape), rng.standard_normal(x.shape)
    along /= np.linalg.norm(along, axis=1, keepdims=True)

    @jax.jit
    @jax.vmap
    def derivatives(x, y, along, inner, outer):
        (_, g_xy), (_, g_yy) = jax.hessian(random_problems.g, argnums=(0, 1))(x, y, inner)
        (f_xx, f_xy), (_, f_yy) = jax.hessian(random_problems.f, argnums=(0, 1))(x, y, outer)
        curvature = lambda x, y: jax.hessian(random_problems.g, argnums=1)(x, y, inner)
        in_x = jax.jvp(lambda x: curvature(x, y), (x,), (along,))[1]
        in_y = jax.jvp(lambda y: curvature(x, y), (y,), (along,))[1]
        return g_yy, g_xy, f_xx, f_xy, f_yy, in_x, in_y

    g_yy, *blocks = map(np.asarray, derivatives(x, y, along, inner, outer))
    spectrum = np.linalg.eigvalsh(g_yy)
    assert np.all(spectrum >= k.mu[:, None] * (1 - 1e-9))
    assert np.all(spectrum <= k.L_yy[:, None] * (1 + 1e-9))
    bounds = k.L_xy, k.f_xx, k.f_xy, k.f_yy, k.rho_xyy, k.rho_yyy
    for block, bound in zip(blocks, bounds, strict=True):
        assert np.all(np.linalg.norm(block, 2, axis=(1, 2)) <= bound * (1 + 1e-9) + 1e-12)
