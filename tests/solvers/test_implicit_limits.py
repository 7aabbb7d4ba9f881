"""Where every implicit method ends up: the stationary point, or exactly the point its bias predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from implicit_reference import last_x, ridge, series

import bilevel as bl
from bilevel import adjoints, aid, hoag, soba, stocbio
from bilevel.solvers import darts, darts_first_order, sama

geometric = lambda k: jnp.maximum(0.1 * 0.9**k, 1e-13)  # below that, rounding

UNBIASED = {
    "aid": lambda p, L, beta: aid(p, inner=1 / L, adjoint=1 / L, outer=beta),
    "aid, 4 + 4 steps": lambda p, L, beta: aid(
        p, inner=1 / L, adjoint=adjoints.steps(1 / L, 4), outer=beta, inner_steps=4
    ),
    "aid, CG": lambda p, L, beta: aid(p, inner=1 / L, adjoint=adjoints.cg(1e-12), outer=beta, inner_steps=3),
    "aid, loose CG": lambda p, L, beta: aid(
        p, inner=1 / L, adjoint=adjoints.cg(1e-12, max_steps=1), outer=beta
    ),
    "aid, MINRES": lambda p, L, beta: aid(p, inner=1 / L, adjoint=adjoints.minres(1e-12), outer=beta),
    "aid, quasi-Newton": lambda p, L, beta: aid(
        p, inner=1 / L, adjoint=adjoints.quasi_newton(steps=1, memory=3), outer=beta
    ),
    "soba": lambda p, L, beta: soba(p, inner=1 / L, adjoint=1 / L, outer=beta),
    "hoag": lambda p, L, beta: hoag(p, inner=1 / L, outer=beta, tol=geometric),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", UNBIASED.values(), ids=UNBIASED.keys())
def test_unbiased_methods_reach_the_minimizer_of_the_quadratic(make):
    q = bl.problems.quadratic(kappa=2.0)
    x = last_x(make(q.problem, q.L, 0.1 / q.L), jnp.ones(2), jnp.zeros(2), steps=800)
    np.testing.assert_allclose(x, q.solution, rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("make", UNBIASED.values(), ids=UNBIASED.keys())
def test_unbiased_methods_reach_a_stationary_point_of_ridge_logistic(make):
    p, dense = ridge()
    x0 = jnp.full(5, 0.3)
    x = last_x(make(p.problem, p.L, 1.0), x0, jnp.zeros(5), p.data)
    assert float(jnp.linalg.norm(dense.hypergradient(x0))) > 1e-2
    assert float(jnp.linalg.norm(dense.hypergradient(x))) < 1e-11


@pytest.mark.slow
def test_quasi_newton_at_both_levels_reaches_a_stationary_point():
    """qNBO with its inner level: optax's L-BFGS recursion, which is not written for strict promotion."""
    p, dense = ridge()
    lbfgs = optax.chain(optax.scale_by_lbfgs(5), optax.scale(-0.5))
    solver = aid(
        p.problem, inner=lbfgs, adjoint=adjoints.quasi_newton(steps=2, memory=3), outer=1.0, inner_steps=8
    )
    with jax.numpy_dtype_promotion("standard"):
        x = last_x(solver, jnp.full(5, 0.3), jnp.zeros(5), p.data)
    assert float(jnp.linalg.norm(dense.hypergradient(x))) < 1e-11


# The estimator each biased method settles on, as a dense function of the Hessian and ∇_y f at y*(x); what
# remains of it is zero at the method's limit, while the true hypergradient is not.
Q = 3
BIASED = {
    "aid, Neumann": (
        lambda p, L, b: aid(p, inner=1 / L, adjoint=adjoints.neumann(1 / L, Q), outer=b),
        lambda L: series(1 / L, Q),
    ),
    "darts": (
        lambda p, L, b: darts(p, inner=1 / L, outer=b, virtual_step=0.8 / L),
        lambda L: lambda H, f_y: 0.8 / L * f_y,
    ),
    "darts, first order": (
        lambda p, L, b: darts_first_order(p, inner=1 / L, outer=b),
        lambda L: lambda H, f_y: jnp.zeros_like(f_y),
    ),
    "sama": (lambda p, L, b: sama(p, inner=0.8 / L, outer=b), lambda L: lambda H, f_y: 0.8 / L * f_y),
}


@pytest.mark.mathematics("darts_first_order")
@pytest.mark.parametrize(("make", "adjoint"), BIASED.values(), ids=BIASED.keys())
def test_biased_methods_reach_their_predicted_point_on_ridge_logistic(make, adjoint):
    # ∇_x g is quadratic in y here, so the central differences of DARTS and SAMA are exact.
    p, dense = ridge()
    x = last_x(make(p.problem, p.L, 1.0), jnp.full(5, 0.3), jnp.zeros(5), p.data)
    estimate, truth = dense.estimate(x, adjoint(p.L)), dense.hypergradient(x)
    # DARTS looks at f one virtual step past y*, which is y* again; the limit is where its estimator vanishes.
    assert float(jnp.linalg.norm(estimate)) < 1e-11
    assert float(jnp.linalg.norm(truth)) > 1e-4


def test_biased_limits_on_the_quadratic_in_closed_form():
    """∇Φ's estimators are Zx + L v̂; v̂ = m(1 − (1 − ηz)^{Q+1})/z for Neumann, ξm for DARTS, αm for SAMA."""
    q = bl.problems.quadratic(kappa=3.0)
    eta, z = 0.7 / q.L, np.array([q.L, q.mu])
    beta = 0.1 / q.L
    limit = lambda solver: last_x(solver, jnp.ones(2), jnp.zeros(2), steps=1200)
    truncated = q.m * (1 - (1 - eta * z) ** (Q + 1)) / z
    close = dict(rtol=0, atol=1e-11)
    p = q.problem
    np.testing.assert_allclose(
        limit(aid(p, inner=eta, adjoint=adjoints.neumann(eta, Q), outer=beta)), -q.L * truncated / z, **close
    )
    np.testing.assert_allclose(
        limit(stocbio(p, inner=eta, adjoint=eta, outer=beta, products=Q)), -q.L * truncated / z, **close
    )
    np.testing.assert_allclose(
        limit(darts(p, inner=eta, outer=beta, virtual_step=eta)), -q.L * eta * q.m / z, **close
    )
    np.testing.assert_allclose(
        limit(darts(p, inner=eta, outer=beta, virtual_step=eta)), q.itd_limit(eta), **close
    )
    np.testing.assert_allclose(limit(sama(p, inner=eta, outer=beta)), q.itd_limit(eta), **close)
    np.testing.assert_allclose(limit(darts_first_order(p, inner=eta, outer=beta)), np.zeros(2), **close)


def test_neumann_s_bias_shrinks_by_the_predicted_factor_a_product():
    """On the weak coordinate of the quadratic the limit is off by L m (1 − ημ)^{Q+1}/μ²."""
    q = bl.problems.quadratic(kappa=3.0)
    eta = 1 / q.L
    for products in (1, 2, 5):
        solver = aid(q.problem, inner=eta, adjoint=adjoints.neumann(eta, products), outer=0.1 / q.L)
        x = last_x(solver, jnp.ones(2), jnp.zeros(2), steps=1200)
        predicted = q.L * q.m * (1 - eta * q.mu) ** (products + 1) / q.mu**2
        np.testing.assert_allclose(x[1] - q.solution[1], predicted, rtol=1e-9)


EXACT = {
    "cg": lambda L: adjoints.cg(1e-14),
    "minres": lambda L: adjoints.minres(1e-14),
    "quasi_newton": lambda L: adjoints.quasi_newton(steps=10, memory=10),
    "steps": lambda L: adjoints.steps(1 / L, 600),
    "neumann": lambda L: adjoints.neumann(1 / L, 600),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", EXACT.values(), ids=EXACT.keys())
def test_an_exact_adjoint_gives_the_exact_hypergradient(make):
    q = bl.problems.quadratic(kappa=8.0)
    x = jnp.array([0.4, -1.3])
    solver = aid(q.problem, inner=1 / q.L, adjoint=make(q.L), outer=1.0)
    _, info = jax.jit(solver.step)(solver.init(x, q.inner_solution(x)))
    np.testing.assert_allclose(info.hypergradient, q.hypergradient(x), rtol=1e-11)

    p, dense = ridge()
    x = jnp.linspace(-1.0, 1.0, 5)
    solver = aid(p.problem, inner=1 / p.L, adjoint=make(p.L), outer=1.0)
    _, info = jax.jit(solver.step)(solver.init(x, dense.inner_solution(x), p.data), p.data)
    np.testing.assert_allclose(info.hypergradient, dense.hypergradient(x), rtol=1e-9, atol=1e-12)
