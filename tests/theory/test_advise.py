"""Advice against closed forms, dense derivatives, and runs that follow it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import bilevel as bl
from bilevel import theory
from bilevel.problems import quadratic, random_quadratic, ridge_logistic
from bilevel.theory.estimation.trial import slope


def test_on_the_papers_problem_every_number_is_the_closed_form():
    q = quadratic(kappa=10.0)
    x0 = jnp.ones(2)
    advice = theory.advise(q.problem, x0, jnp.zeros(2), infimum=-100.0, warmup=500)
    bias = np.linalg.norm(q.m * q.L / q.z - q.m)  # ∇Φ − (Zx + αLm·1) with α = 1/L
    slope = np.linalg.norm(q.hypergradient(x0))
    assert advice.at.bias == pytest.approx(bias, rel=1e-9)
    assert advice.at.hypergradient == pytest.approx(slope, rel=1e-9)
    assert advice.bias_share == pytest.approx(bias / slope, rel=1e-9)
    assert advice.at.smoothness == pytest.approx(q.L, rel=1e-9)  # ∇²Φ = Z
    assert advice.practical.inner == pytest.approx(1 / q.L, rel=1e-9)
    assert advice.practical.adjoint == pytest.approx(1 / q.L, rel=1e-9)
    assert advice.practical.outer == pytest.approx(1 / (10 * q.L), rel=1e-9)  # αμ/L̂_Φ
    assert advice.damping == 0
    assert advice.method == "AID"
    assert f"{bias / slope:.1%}" in advice.recommendation

    k = advice.estimated.assume()
    assert advice.certified["AID (Theorem 5.9)"] == (1 / k.L, 1 / k.L, theory.aid(k).beta)
    assert advice.certified["ITD (Theorem 5.17)"].outer == theory.itd(k).beta
    gap = float(q.value(x0)) + 100.0
    assert advice.certified["AID (tight)"].outer == pytest.approx(
        theory.tight.aid(k).best_beta(gap), rel=1e-6
    )
    shown = str(advice)
    assert "Use AID" in shown
    assert "hold" in shown
    with pytest.raises(ValueError, match="infimum"):
        theory.advise(q.problem, x0, jnp.zeros(2), infimum=1e6, warmup=500)


def test_hypergradient_bias_and_curvature_on_ridge_logistic_regression():
    """Bias against ITD's own estimate at y*, the curvature of Φ against differences of exact hypergradients."""
    p = ridge_logistic(features=4, train=30, valid=30, seed=2)
    x0 = jnp.asarray([1.0, -1.0, 0.0, 0.5])
    advice = theory.advise(p.problem, x0, jnp.zeros(4), p.data, warmup=500)
    solve = jax.jit(lambda x: theory.exact(p.problem, x, jnp.zeros(4), p.data))
    star = solve(x0)
    itd = bl.itd(p.problem, inner=advice.practical.inner, outer=1.0)
    _, info = jax.jit(itd.step)(itd.init(x0, star.y, p.data), p.data)
    assert advice.at.hypergradient == pytest.approx(np.linalg.norm(star.hypergradient), rel=1e-8)
    assert advice.at.bias == pytest.approx(np.linalg.norm(info.hypergradient - star.hypergradient), rel=1e-8)
    h = 1e-4
    change = lambda e: (solve(x0 + h * e).hypergradient - solve(x0 - h * e).hypergradient) / (2 * h)
    hessian = np.stack([change(e) for e in jnp.eye(4)])
    assert advice.at.smoothness == pytest.approx(np.linalg.norm(hessian, 2), rel=1e-4)


def test_practical_step_sizes_work_and_a_small_bias_means_itd():
    """One compiled program serves all instances: they differ in their data only."""
    methods = set()
    problem, x0 = random_quadratic(0).problem, jnp.ones(3)
    slope = jax.jit(
        lambda x, data: jnp.linalg.norm(theory.exact(problem, x, jnp.ones(3), data).hypergradient)
    )
    for seed, kappa in ((0, 1.05), (1, 3.0), (2, 8.0), (3, 15.0)):
        p = random_quadratic(seed, mu=0.5, kappa=kappa, M=5.0)
        advice = theory.advise(problem, x0, jnp.ones(3), p.data)
        methods.add(advice.method)
        assert (advice.method == "ITD") == (advice.bias_share <= 0.1)
        solver = bl.aid(problem, *advice.practical)
        result = bl.run(solver, x0, jnp.ones(3), data=p.data, steps=6000, every=2000)
        assert slope(result.x, p.data) < 0.02 * slope(x0, p.data)
    assert methods == {"AID", "ITD"}


@pytest.mark.parametrize("method", ["AID", "ITD"])
def test_the_slope_of_a_trial_run_is_that_of_its_recorded_iterates(method):
    """Against every x and estimate of the run written down, on objectives that also return metrics."""
    p = ridge_logistic(features=3, train=16, valid=16, seed=4)
    problem = bl.Problem(
        inner=lambda x, y, b: (p.g(x, y, b), {"norm": jnp.linalg.norm(y)}),
        outer=lambda x, y, b: (p.f(x, y, b), {}),
    )
    make = {
        "AID": lambda beta: bl.aid(problem, 0.5, 0.5, beta),
        "ITD": lambda beta: bl.itd(problem, 0.5, beta),
    }
    solver, x0, y0, steps = make[method](0.3), jnp.ones(3), jnp.zeros(3), 20
    state = solver.init(x0, y0, p.data)
    if method == "AID":
        H = jax.hessian(p.g, argnums=1)(x0, y0, p.data.inner)
        state = state._replace(v=jnp.linalg.solve(H, jax.grad(p.f, argnums=1)(x0, y0, p.data.outer)))
    record = lambda state, info: (state.x, info.hypergradient)
    _, (x, h) = jax.device_get(bl.scan(solver, state, p.data, steps=steps + 1, record=record))
    moved = np.diff(np.concatenate([[x0], x[:-1]]), axis=0)
    ratios = np.linalg.norm(np.diff(h, axis=0), axis=1) / np.linalg.norm(moved, axis=1)
    assert len(ratios) == steps
    assert slope(solver, steps, x0, y0, p.data) == pytest.approx(ratios.max(), rel=1e-5)  # cg stops at 1e-5
    assert slope(make[method](1e200), steps, x0, y0, p.data) == np.inf


def small_network(seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    data = bl.Batch(inner=(draw(32, 6), draw(32)), outer=(draw(16, 6), draw(16)))
    predict = lambda y, a: jnp.tanh(a @ y["w"]) @ y["u"]
    problem = bl.Problem(
        outer=lambda x, y, b: jnp.mean((predict(y, b[0]) - b[1]) ** 2),
        inner=lambda x, y, b: jnp.mean(jax.nn.sigmoid(x) * (predict(y, b[0]) - b[1]) ** 2),
    )
    return problem, jnp.zeros(32, jnp.float32), {"w": draw(6, 8), "u": draw(8)}, data


def test_a_network_is_said_not_to_be_strongly_convex():
    problem, x0, y0, data = small_network()
    advice = theory.advise(problem, x0, y0, data, seed=3)
    assert advice.estimated.mu_at_most < 0
    assert advice.damping == pytest.approx(-2 * advice.estimated.mu_at_most)
    assert advice.certified == {}
    assert "not strongly convex" in advice.recommendation
    assert "damped" in advice.recommendation
    assert all(np.isfinite(size) and size > 0 for size in advice.practical)
    assert str(advice) == str(theory.advise(problem, x0, y0, data, seed=3))
    # The curvature reported is one that a direction really has.
    flat, unravel = ravel_pytree(y0)
    H = jax.jit(jax.hessian(lambda y: problem.g(x0, unravel(y), data)))(flat)
    assert advice.estimated.mu_at_most <= np.linalg.eigvalsh(H)[0] + 1e-4
    with pytest.raises(ValueError, match="warmup"):
        theory.advise(problem, x0, y0, data, warmup=-1)


def test_a_projected_x_is_measured_by_the_gradient_mapping():
    """Φ = ½‖x − c‖² on x ≥ 0: at the solution max(c, 0) ∇Φ is not zero, and the gradient mapping is."""
    c = jnp.array([1.0, -2.0])
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: 0.5 * jnp.sum((y - c) ** 2)
    )
    inside = optax.projections.projection_non_negative
    at = bl.advise(problem, jnp.array([1.0, 0.0]), jnp.zeros(2), project=inside)
    np.testing.assert_allclose(at.at.hypergradient, 0.0, atol=1e-10)
    assert "gradient mapping" in str(at)
    free = bl.advise(problem, jnp.array([1.0, 0.0]), jnp.zeros(2))
    np.testing.assert_allclose(free.at.hypergradient, 2.0)
    advice = bl.advise(problem, jnp.zeros(2), jnp.zeros(2), project=inside)
    np.testing.assert_allclose(advice.at.hypergradient, 1.0)  # x would move along the first axis alone
    solver = bl.aid(problem, *advice.practical[:2], bl.projected(advice.practical.outer, inside))
    result = bl.run(solver, jnp.zeros(2), jnp.zeros(2), steps=2000, tol=1e-8)
    assert result.status.code == bl.Code.CONVERGED
    np.testing.assert_allclose(result.x, [1.0, 0.0], atol=1e-7)


def test_a_proximal_map_is_refused():
    problem = bl.Problem(
        inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y**2), prox=bl.prox.l1(0.1)
    )
    with pytest.raises(ValueError, match=r"advise measures smooth inner problems"):
        bl.advise(problem, jnp.ones(2), jnp.ones(2))
