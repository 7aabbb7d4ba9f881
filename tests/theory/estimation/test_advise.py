"""Advice against closed forms, dense derivatives, and runs that follow it."""

import itertools
from functools import partial

import hidden_problems as hidden
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import bilevel as bl
from bilevel import theory
from bilevel.problems import quadratic, ridge_logistic
from bilevel.problems.two_dimensional import FAMILY, as_data
from bilevel.theory.estimation.estimates import StartErrors, sampled_certificates
from bilevel.theory.estimation.stationarity import measure_stationarity
from bilevel.theory.estimation.trial_runs import halve_beta, largest_slope


@pytest.mark.slow
def test_on_the_papers_problem_every_number_is_the_closed_form():
    q = quadratic(kappa=10.0)
    x0, y0 = jnp.ones(2), jnp.zeros(2)
    advice = theory.advise(
        FAMILY, x0, y0, as_data(q), infimum=-100.0, warmup=3, steps=50
    )  # 3 steps settle nothing
    bias = np.linalg.norm(q.m * q.L / q.z - q.m)  # ∇Φ − (Zx + αLm·1) with α = 1/L
    slope = np.linalg.norm(q.hypergradient(x0))
    assert advice.at.value == pytest.approx(float(q.value(x0)), rel=1e-9)  # Φ(x0), not f at some y
    assert advice.at.bias == pytest.approx(bias, rel=1e-9)
    assert advice.at.hypergradient == pytest.approx(slope, rel=1e-9)
    assert advice.at.bias_share == pytest.approx(bias / slope, rel=1e-9)
    assert advice.at.smoothness == pytest.approx(q.L, rel=1e-9)  # ∇²Φ = Z
    assert advice.practical.inner == pytest.approx(1 / q.L, rel=1e-9)
    assert advice.practical.adjoint == pytest.approx(1 / q.L, rel=1e-9)
    assert advice.practical.outer == pytest.approx(1 / (10 * q.L), rel=1e-9)  # αμ/L̂_Φ
    assert (advice.damping, advice.tried, advice.method) == (0, True, "AID")

    # Certificates are those of the problem's constants and its start, in blocks or for the paper's single ones.
    gap, y_error = float(q.value(x0)) + 100.0, np.linalg.norm(q.inner_solution(x0))
    start = (50, gap, y_error, np.linalg.norm(q.adjoint_solution(x0)))
    expected = dict(mu=q.mu, L_yy=q.L, L_xy=q.L, f_xx=q.L, f_xy=0.0, f_yy=0.0, M_y=q.m * 2**0.5)
    seen, blocks = advice.estimated.assume_blocks(), theory.Blocks(**expected)
    for name, value in expected.items():
        assert getattr(seen, name) == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert advice.estimated.L_at_least == pytest.approx(2**0.5 * q.L, rel=1e-9)  # ‖(∇²_xy g, ∇²_yy g)‖
    found, truth = advice.sampled["AID (star)"], theory.star.aid(blocks)
    assert found.sizes == pytest.approx(truth.step_sizes(*start), rel=1e-6)
    assert found.bound == pytest.approx(truth.bound(*start, beta=found.sizes.outer), rel=1e-6)
    single = theory.Constants(q.mu, 2**0.5 * q.L, q.m * 2**0.5, 0.0)  # M bounds ∇_y f alone for AID
    assert advice.sampled["AID (paper)"].sizes == pytest.approx(
        theory.aid(single).step_sizes(*start), rel=1e-6
    )
    shown = " ".join(str(advice).split())
    for words in (
        "Use AID",
        "Sampled",
        "constants below hold",
        "No sample proves",
        f"{found.bound:.4g}",
        "50 steps",
    ):
        assert words in shown
    assert "ertified" not in shown
    with pytest.raises(ValueError, match="infimum"):
        theory.advise(FAMILY, x0, y0, as_data(q), infimum=1e6, warmup=3)


@pytest.mark.slow
def test_a_hard_inner_problem_is_solved_before_it_is_measured():
    """κ = 1000 and 10⁴ after a hundred steps on y, which settle nothing: β = αμ/L̂_Φ with ∇²Φ = Z, as for any κ."""
    for kappa in (1e3, 1e4):
        q = quadratic(kappa=kappa)
        advice = theory.advise(FAMILY, jnp.ones(2), jnp.zeros(2), as_data(q), infimum=-1e9, steps=10)
        assert advice.tried
        assert advice.practical.outer == pytest.approx(1 / (kappa * q.L), rel=1e-6)
        assert advice.at.inner_gradient < 1e-9 * q.L


@partial(jax.jit, static_argnames=("method", "steps"))
def mean_square(method, sizes, x0, y0, data, steps):
    """(1/K) Σ ‖∇Φ(x_k)‖² of a real run, by Newton steps on dense derivatives at every x_k; and their residual."""
    alpha, eta, beta = sizes
    make = {
        "AID": lambda: bl.aid(hidden.PROBLEM, inner=alpha, adjoint=eta, outer=beta),
        "ITD": lambda: bl.itd(hidden.PROBLEM, inner=alpha, outer=beta),
        "SOBA": lambda: bl.soba(hidden.PROBLEM, inner=alpha, adjoint=eta, outer=beta),
    }
    solver = make[method]()
    gradient = lambda x, y: jax.grad(hidden.g, 1)(x, y, data.inner)
    newton = lambda x, y: y - jnp.linalg.solve(jax.jacobian(gradient, 1)(x, y), gradient(x, y))

    def body(carry, _):
        state, star = carry
        x, star = state.x, jax.lax.fori_loop(0, 4, lambda _, y: newton(state.x, y), star)
        f_x, f_y = jax.grad(hidden.f, (0, 1))(x, star, data.outer)
        slope = -jnp.linalg.solve(jax.jacobian(gradient, 1)(x, star), jax.jacobian(gradient, 0)(x, star))
        row = jnp.sum((f_x + f_y @ slope) ** 2), jnp.linalg.norm(gradient(x, star))
        return (solver.step(state, data)[0], star), row

    star = theory.exact(hidden.PROBLEM, x0, y0, data).y
    _, (squares, residuals) = jax.lax.scan(body, (solver.init(x0, y0, data), star), length=steps)
    return jnp.mean(squares), jnp.max(residuals)


def check_bounds(advice, x0, y0, data):
    """Every printed set, run for as many steps as its bound speaks of."""
    assert {"AID (star)", "ITD (star)", "SOBA (star)"} <= set(advice.sampled)
    for name, one in advice.sampled.items():
        sizes = tuple(0.0 if size is None else size for size in one.sizes)
        mean, residual = mean_square(name.split()[0], sizes, x0, y0, data, one.steps)
        assert residual < 1e-8
        assert mean <= one.bound, name
        assert f"{one.bound:.4g}" in str(advice)


@pytest.mark.slow
def test_a_printed_bound_is_never_exceeded_by_the_run_it_speaks_of():
    """Two problems of every kind, most of which hide their worst constants from the start; compiled for once."""
    for kind, seed in itertools.product(hidden.KINDS, range(2)):
        data, x0, y0, mu = hidden.draw(kind, seed)
        advice = theory.advise(hidden.PROBLEM, x0, y0, data, steps=300)
        assert advice.tried
        assert advice.estimated.mu_at_most >= mu * (1 - 1e-9)
        check_bounds(advice, x0, y0, data)
        assert (advice.method == "ITD") == (advice.bias_share <= 0.1)
        assert advice.bias_share == max(at.bias_share for at in (advice.at, *advice.along))


@pytest.mark.slow
def test_the_start_alone_would_promise_too_much():
    """Where the run goes the curvature of g is a twentieth: bounds for its constants are off by ten thousand."""
    data, x0, y0, mu = hidden.steep()
    alone = theory.estimate(hidden.PROBLEM, x0, y0, data)
    assert alone.mu_at_most == pytest.approx(1.0)
    value, v = (
        hidden.f(x0, y0, data.outer),
        jax.grad(hidden.f, 1)(x0, y0, data.outer),
    )  # y0 = y*(x0), H = I there
    one = sampled_certificates(alone, StartErrors(float(value), 0.0, float(jnp.linalg.norm(v))), 300)[
        "ITD (star)"
    ]
    mean, residual = mean_square("ITD", (one.sizes.inner, 0.0, one.sizes.outer), x0, y0, data, 300)
    assert residual < 1e-8
    assert 5_000 < mean / one.bound < 50_000  # four orders, says docs/how-to/advise.md

    advice = theory.advise(hidden.PROBLEM, x0, y0, data, steps=300)
    assert mu * (1 - 1e-9) <= advice.estimated.mu_at_most < 0.1
    check_bounds(advice, x0, y0, data)


@pytest.mark.slow
def test_a_trial_that_nothing_passes_is_told():
    """With a kink in f under x0 the estimate jumps however short the step; β is then not halved to nothing."""
    assert halve_beta(8.0, lambda beta: beta, limit=1.0) == (1.0, 3, True)
    data, x0, y0, _ = hidden.draw("quadratic", 0)
    kinked = bl.Batch(
        inner=data.inner,
        outer=data.outer._replace(kink=jnp.asarray(1.0, float), p=0 * data.outer.p, e=0.01 * x0),
    )
    advice = theory.advise(hidden.PROBLEM, 0 * x0, y0, kinked, steps=300)
    untried = theory.advise(hidden.PROBLEM, 0 * x0, y0, kinked, steps=300, trial=0)
    assert not advice.tried
    assert advice.practical.outer == pytest.approx(untried.practical.outer)
    for words in ("No outer step passed its trial", "40 halvings", "practical, untried"):
        assert words in " ".join(str(advice).split())
    assert advice.sampled == untried.sampled == {}  # the curvature of f at its points does not show a kink
    for words in ("trial=0", "No certificate is offered", "practical, untried"):
        assert words in " ".join(str(untried).split())


@pytest.mark.slow
def test_hypergradient_bias_and_curvature_are_those_of_dense_derivatives():
    """Bias against ITD's own estimate at y*, the curvature of Φ against differences of exact hypergradients."""
    problem = hidden.PROBLEM
    data, x0, y0, _ = hidden.draw("everything", 7)
    x0 = x0 + jnp.asarray([1.0, -1.0, 0.5])
    advice = theory.advise(problem, x0, y0, data, steps=300)
    solve = jax.jit(lambda x: theory.exact(problem, x, y0, data))
    star = solve(x0)
    itd = bl.itd(problem, inner=0.3, outer=1.0)
    _, info = jax.jit(itd.step)(itd.init(x0, star.y, data), data)
    assert advice.at.hypergradient == pytest.approx(np.linalg.norm(star.hypergradient), rel=1e-8)
    h = 1e-4
    change = lambda e: (solve(x0 + h * e).hypergradient - solve(x0 - h * e).hypergradient) / (2 * h)
    hessian = np.stack([change(e) for e in jnp.eye(3)])
    assert advice.at.smoothness == pytest.approx(np.linalg.norm(hessian, 2), rel=1e-4)
    at = jax.jit(lambda: measure_stationarity(problem, 0, None, x0, star.y, data, 0.3, 0.0, None, 1.0))()
    assert at.bias == pytest.approx(np.linalg.norm(info.hypergradient - star.hypergradient), rel=1e-8)


@pytest.mark.slow
def test_practical_step_sizes_work_and_no_bias_means_itd():
    methods = set()
    slope = jax.jit(
        lambda x, data: jnp.linalg.norm(theory.exact(hidden.PROBLEM, x, jnp.ones(3), data).hypergradient)
    )
    for seed, alike in ((0, True), (1, False), (2, False)):
        data, x0, y0, mu = hidden.draw("quadratic", seed)
        if alike:  # κ = 1: one inner step is the solution, and nothing is lost by differentiating it alone
            data = bl.Batch(inner=data.inner._replace(H=mu * jnp.eye(3)), outer=data.outer)
        advice = theory.advise(hidden.PROBLEM, x0, y0, data, steps=300)
        methods.add((alike, advice.method))
        solver = bl.aid(hidden.PROBLEM, **advice.practical._asdict())
        result = bl.run(solver, x0, y0, data=data, steps=6000, options=bl.RunOptions(every=2000))
        assert slope(result.x, data) < 0.02 * slope(x0, data)
    assert methods == {(True, "ITD"), (False, "AID")}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["AID", "ITD"])
def test_the_slope_of_a_trial_run_is_that_of_its_recorded_iterates(method):
    """Against every x and estimate of the run written down, on objectives that also return metrics."""
    p = ridge_logistic(features=3, train=16, valid=16, seed=4)
    problem = bl.Problem(
        inner=lambda x, y, b: (p.g(x, y, b), {"norm": jnp.linalg.norm(y)}),
        outer=lambda x, y, b: (p.f(x, y, b), {}),
    )
    make = {
        "AID": lambda beta: bl.aid(problem, inner=0.5, adjoint=0.5, outer=beta),
        "ITD": lambda beta: bl.itd(problem, inner=0.5, outer=beta),
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
    assert largest_slope(solver, steps, x0, y0, p.data) == pytest.approx(
        ratios.max(), rel=1e-5
    )  # cg stops at 1e-5
    assert largest_slope(make[method](1e200), steps, x0, y0, p.data) == np.inf


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


@pytest.mark.slow
def test_a_network_is_said_not_to_be_strongly_convex():
    problem, x0, y0, data = small_network()
    advice = theory.advise(problem, x0, y0, data, seed=3)
    assert advice.estimated.mu_at_most < 0
    assert advice.damping == pytest.approx(-2 * advice.estimated.mu_at_most)
    assert advice.sampled == {}
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


@pytest.mark.slow
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
    solver = bl.aid(
        problem,
        **advice.practical._replace(outer=bl.projected(advice.practical.outer, inside))._asdict(),
    )
    result = bl.run(solver, jnp.zeros(2), jnp.zeros(2), steps=2000, tol=1e-8)
    assert result.status.code == bl.Code.CONVERGED
    np.testing.assert_allclose(result.x, [1.0, 0.0], atol=1e-7)


def test_a_proximal_map_is_refused():
    problem = bl.Problem(
        inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y**2), prox=bl.prox.l1(0.1)
    )
    with pytest.raises(ValueError, match=r"advise measures smooth inner problems"):
        bl.advise(problem, jnp.ones(2), jnp.ones(2))
