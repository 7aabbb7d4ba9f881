"""Methods without step sizes: what the units of a problem may not change, and that they converge whatever it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from implicit_reference import ridge

import bilevel as bl
from bilevel import tuning_free
from bilevel.solvers import d_tfbo, s_tfbo

C = jnp.array([0.07, -0.02, 0.04])


def in_units(p, outer=1.0, inner=1.0, x=1.0, y=1.0):
    """The same problem with f, g, x and y measured in other units."""
    return bl.Problem(
        outer=lambda u, w, batch: outer * p.f(u / x, w / y, batch),
        inner=lambda u, w, batch: inner * p.g(u / x, w / y, batch),
    )


def run(solver, x0, y0, data=None, steps=1000, record=lambda state, info: None):
    return jax.jit(lambda data: bl.scan(solver, solver.init(x0, y0, data), data, steps=steps, record=record))(
        data
    )


def hypergradient(problem, x, y, data):
    """Densely, at the inner solution that Newton's method reaches from y."""
    newton = lambda y, _: (
        y - jnp.linalg.solve(jax.hessian(problem.g, 1)(x, y, data), jax.grad(problem.g, 1)(x, y, data)),
        None,
    )
    y, _ = jax.lax.scan(newton, y, length=20)
    v = jnp.linalg.solve(jax.hessian(problem.g, 1)(x, y, data), jax.grad(problem.f, 1)(x, y, data))
    cross = jax.jacobian(jax.grad(problem.g, 1))(x, y, data)
    return jax.grad(problem.f)(x, y, data) - cross.T @ v


@pytest.mark.mathematics("tuning_free")
def test_the_iterates_do_not_depend_on_any_units():
    """Exactly, by the recurrence: the units are powers of two here, so that not even rounding differs."""
    p, _ = ridge()
    x0, y0 = jnp.full(5, 0.3), jnp.full(5, 0.5)
    keep = lambda state, info: (state.x, state.y)

    @jax.jit
    def iterates(units):
        solver = tuning_free(in_units(p, **units))
        start = solver.init(units["x"] * x0, units["y"] * y0, p.data)
        _, (x, y) = bl.scan(solver, start, p.data, steps=12, record=keep)
        return x / units["x"], y / units["y"]

    x, y = iterates(dict(outer=1.0, inner=1.0, x=1.0, y=1.0))
    for units in (
        dict(outer=2.0**20, inner=2.0**-12, x=2.0**13, y=2.0**15),
        dict(outer=2.0**-20, inner=2.0**12, x=2.0**-13, y=2.0**-15),
    ):
        also_x, also_y = iterates(units)
        np.testing.assert_allclose(also_x, x, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(also_y, y, rtol=1e-9, atol=1e-12)
    assert jnp.linalg.norm(x[-1] - x0) > 0.1


@pytest.mark.parametrize("kappa", [2.0, 100.0])
def test_the_paper_s_quadratic_is_solved_without_a_step_size(kappa):
    q = bl.problems.quadratic(kappa=kappa)
    state, _ = run(tuning_free(q.problem), jnp.ones(2), jnp.zeros(2), steps=100)
    np.testing.assert_allclose(state.x, q.solution, rtol=1e-6)
    np.testing.assert_allclose(state.y, q.inner_solution(q.solution), rtol=1e-6)
    np.testing.assert_allclose(state.v, q.adjoint_solution(q.solution), rtol=1e-6)
    assert state.noise < 1e-3


def signed(rng, shape):
    a, w = rng.normal(size=shape), rng.normal(size=shape[1])
    return a * np.sign(a @ w + 0.1 * rng.normal(size=shape[0]))[:, None]


def logistic(y, a):
    return jnp.mean(jax.nn.softplus(-a @ y))


LOG_RIDGES = bl.Problem(
    inner=lambda x, y, a: logistic(y, a) + 0.5 * jnp.sum(jnp.exp(x) * y**2),
    outer=lambda x, y, a: logistic(y, a) + 1e-3 * jnp.sum(x**2),
)


@pytest.mark.slow
def test_log_ridges_from_far_away_do_not_freeze():
    """Training and validation labels of different weight vectors, x₀ = −3: an accumulator of norms never recovers."""
    of = lambda seed: tuple(signed(rng, (60, 5)) for rng in [np.random.default_rng(seed)] for _ in range(2))
    inner, outer = map(np.stack, zip(*map(of, range(6)), strict=True))
    solver, x0, y0 = tuning_free(LOG_RIDGES), jnp.full(5, -3.0), jnp.zeros(5)

    @jax.jit
    @jax.vmap
    def relative(data):
        state, _ = bl.scan(solver, solver.init(x0, y0, data), data, steps=40)
        at = lambda x: jnp.linalg.norm(hypergradient(LOG_RIDGES, x, state.y, data))
        return at(state.x) / at(x0)

    assert jnp.max(relative(bl.Batch(inner=jnp.asarray(inner), outer=jnp.asarray(outer)))) < 1e-3


@pytest.mark.slow
def test_poisson_log_ridges_do_not_freeze():
    rng = np.random.default_rng(0)
    draw = lambda a: (jnp.asarray(a), jnp.asarray(1.0 * rng.poisson(np.exp(a @ rng.normal(size=5) / 2))))
    data = bl.Batch(inner=draw(rng.normal(size=(60, 5))), outer=draw(rng.normal(size=(60, 5))))
    loss = lambda y, d: jnp.mean(jnp.exp(d[0] @ y) - d[1] * (d[0] @ y))
    problem = bl.Problem(
        inner=lambda x, y, d: loss(y, d) + 0.5 * jnp.sum(jnp.exp(x) * y**2),
        outer=lambda x, y, d: loss(y, d) + 1e-3 * jnp.sum(x**2),
    )
    x0 = jnp.full(5, -3.0)
    state, _ = run(tuning_free(problem), x0, jnp.zeros(5), data, 60)
    at = lambda x: jnp.linalg.norm(hypergradient(problem, x, state.y, data))
    assert at(state.x) < 1e-3 * at(x0)


@pytest.mark.slow
def test_a_quartic_inner_problem_with_little_curvature_where_it_starts():
    c = jnp.asarray(np.random.default_rng(0).normal(size=4))
    problem = bl.Problem(
        inner=lambda x, y: 0.25 * jnp.sum(y**4) + 0.005 * jnp.sum(y**2) - x @ y,
        outer=lambda x, y: 0.5 * jnp.sum((y - c) ** 2) + 0.05 * jnp.sum(x**2),
    )
    state, _ = run(tuning_free(problem), jnp.ones(4), jnp.zeros(4), steps=200)
    at = lambda x: jnp.linalg.norm(hypergradient(problem, x, state.y, None))
    assert at(state.x) < 1e-3 * at(jnp.ones(4))


@pytest.mark.slow
@pytest.mark.parametrize("kappa", [10.0, 1000.0])
def test_levels_that_feed_back_on_each_other(kappa):
    """With f = ½‖y − c‖² the adjoint follows y and y follows x: too long an outer step would spiral away."""
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    H, B, c = (
        Q @ np.diag(np.geomspace(1 / kappa, 1.0, 6)) @ Q.T,
        rng.normal(size=(6, 4)) / 2,
        rng.normal(size=6),
    )
    problem = bl.Problem(
        outer=lambda x, y: 0.5 * jnp.sum((y - c) ** 2) + 0.05 * jnp.sum(x**2),
        inner=lambda x, y: 0.5 * y @ H @ y - y @ (B @ x),
    )
    K = np.linalg.solve(H, B)
    gradient = lambda x: 0.1 * x + K.T @ (K @ x - c)
    _, x = run(tuning_free(problem), jnp.zeros(4), jnp.zeros(6), steps=300, record=lambda s, i: s.x)
    norms = np.array([np.linalg.norm(gradient(each)) for each in x])
    assert norms.min() < 1e-3 * np.linalg.norm(gradient(np.zeros(4)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "project",
    [lambda x: jnp.clip(x, -0.5, 0.5), lambda x: x / jnp.maximum(1, jnp.linalg.norm(x))],
    ids=["box", "ball"],
)
def test_a_projection_ends_at_the_constrained_minimizer(project):
    """Φ(x) = ½‖x − c‖², whose minimizer in the set is the projection of c; there h does not vanish."""
    c = jnp.asarray([2.0, 0.1, -0.3])
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: 0.5 * jnp.sum((y - c) ** 2)
    )
    solver = tuning_free(problem, project=project)
    result = bl.run(solver, jnp.full(3, 1 / 3), jnp.zeros(3), steps=60, tol=1e-8)
    assert result.status.code is bl.Code.CONVERGED
    np.testing.assert_allclose(result.x, project(c), atol=1e-7)
    assert result.trace["stationarity"][-1] <= 1e-8 < 0.1 < result.trace["hypergradient_norm"][-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outer", "project", "solution"),
    [
        (lambda y: 0.5 * jnp.sum((y - C) ** 2) + 100, lambda x: jnp.clip(x, -0.1, 0.1), [0.07, -0.02, 0.04]),
        (
            lambda y: 4 * y[0] - 0.5 * jnp.sum(y**2),
            lambda x: x / jnp.maximum(1, jnp.linalg.norm(x)),
            [-1.0, 0, 0],
        ),
    ],
    ids=["a constant in f", "concave"],
)
def test_a_long_step_into_a_bounded_set_is_not_convergence(outer, project, solution):
    """‖x − P(x − βh)‖/β is at most the set's diameter over β, wherever x is."""
    problem = bl.Problem(inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: outer(y))
    solver = tuning_free(problem, project=project)
    result = bl.run(solver, jnp.array([0, 0.01, 0]), jnp.zeros(3), steps=60, tol=1e-3)
    assert result.status.code is bl.Code.CONVERGED
    np.testing.assert_allclose(result.x, jnp.asarray(solution), atol=2e-3)


@pytest.mark.slow
def test_minibatches_are_noticed_and_settle():
    rng = np.random.default_rng(3)
    data = bl.Batch(*(jnp.asarray(signed(rng, (60, 5))) for _ in range(2)))
    solver, x0, y0 = tuning_free(LOG_RIDGES), jnp.full(5, -3.0), jnp.zeros(5)
    stream = bl.iid(data, size=20, seed=0)

    @jax.jit
    def go(data):
        start = solver.init(x0, y0, bl.Batch(inner=data.inner[:20], outer=data.outer[:20]))
        state, x = bl.scan(solver, start, stream, steps=400, record=lambda s, i: s.x)
        at = lambda x: jnp.linalg.norm(hypergradient(LOG_RIDGES, x, state.y, data))
        return state.noise, jax.vmap(at)(x[-20:]) / at(x0)

    noise, relative = go(data)
    assert 100 < noise <= 400  # nearly every step counts, none for more than one
    assert jnp.median(relative) < 0.1


@pytest.mark.slow
def test_a_trial_that_is_not_a_number_is_withdrawn():
    edge = bl.Problem(
        inner=lambda x, y: jnp.sum((y - x**1.5) ** 2), outer=lambda x, y: jnp.sum((y - 0.01) ** 2)
    )  # NaN for x < 0
    result = bl.run(tuning_free(edge), jnp.full(2, 0.5), jnp.zeros(2), steps=100)
    assert result.status.code is bl.Code.COMPLETED
    np.testing.assert_allclose(result.x, 0.01 ** (2 / 3), rtol=1e-4)


@pytest.mark.slow
def test_rounding_is_not_noise():
    """A network in float32 on one batch: its derivatives differ between two compilations of the same formula."""
    rng = np.random.default_rng(2)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    inner, outer = draw(40, 4), draw(40, 4)
    loss = lambda y, a: jnp.mean((jnp.tanh(a @ y["w"]) @ y["u"] - jnp.sin(a.sum(1))) ** 2)
    ridges = lambda x, y: jnp.exp(x[0]) * jnp.sum(y["w"] ** 2) + jnp.exp(x[1]) * jnp.sum(y["u"] ** 2)
    problem = bl.Problem(
        inner=lambda x, y, a: loss(y, a) + 1e-3 * ridges(x, y), outer=lambda x, y, a: loss(y, a)
    )
    start = {"w": draw(4, 8), "u": draw(8)}
    data = bl.Batch(inner=inner, outer=outer)
    state, _ = run(tuning_free(problem), jnp.zeros(2, jnp.float32), start, data, steps=60)
    assert state.noise == 0


def test_after_a_noisy_step_the_same_batch_shows_nothing_new():
    """What is kept is seen where the step has ended, behind the correction."""
    rng = np.random.default_rng(3)
    first, then = (bl.Batch(*(jnp.asarray(signed(rng, (60, 5))) for _ in range(2))) for _ in range(2))
    solver = tuning_free(LOG_RIDGES)
    step, noise = jax.jit(solver.step), []
    state = solver.init(jnp.zeros(5), jnp.zeros(5), first)
    for batch in [first] * 3 + [then] * 4:
        state, _ = step(state, batch)
        noise.append(float(state.noise))
    assert noise[2] == 0 < noise[3] == noise[-1]


def test_variables_of_two_dtypes():
    """The objectives are computed in float32, and known no better than y in bfloat16 lets them be."""
    wide = lambda y: y.astype(jnp.float32)
    a, c = jnp.asarray([[3.0, 1.0, 0.3], [2.0, 0.1, -0.3]], jnp.float32)
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum(a * (wide(y) - x) ** 2) + jnp.sum(jnp.cosh(wide(y))),
        outer=lambda x, y: 0.5 * jnp.sum((wide(y) - c) ** 2),
    )
    state, _ = run(tuning_free(problem), jnp.full(3, 0.2, jnp.float32), jnp.zeros(3, jnp.bfloat16), steps=20)
    np.testing.assert_allclose(state.x, c + jnp.sinh(c) / a, rtol=0.05)


def test_a_singular_inner_hessian_is_said_to_stall():
    A, c = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8))), jnp.arange(8.0)
    problem = bl.Problem(
        inner=lambda x, y: jnp.sum((A @ y - x) ** 2), outer=lambda x, y: jnp.sum((y - c) ** 2)
    )
    result = bl.run(tuning_free(problem), jnp.ones(4), jnp.zeros(8), steps=30)
    assert "stalled" in result.status.message
    assert "singular" in result.status.message


@pytest.mark.slow
def test_a_run_that_has_stalled_says_so():
    """A gradient that is not f's: no step along it lowers Φ."""

    @jax.custom_jvp
    def wrong(y):
        return jnp.sum(y**2)

    wrong.defjvp(lambda primals, tangents: (wrong(*primals), -2 * jnp.vdot(primals[0], tangents[0])))
    problem = bl.Problem(inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: wrong(y) + 1.0)
    result = bl.run(tuning_free(problem), jnp.ones(2), jnp.zeros(2), steps=60)
    assert "stalled" in result.status.message
    good = bl.Problem(inner=problem.inner, outer=lambda x, y: jnp.sum(y**2) + 1.0)
    assert "stalled" not in bl.run(tuning_free(good), jnp.ones(2), jnp.zeros(2), steps=60).status.message


def test_warm_up_solves_the_inner_problem_at_x0():
    q = bl.problems.quadratic(kappa=4.0)
    for solver in (tuning_free(q.problem), s_tfbo(q.problem), d_tfbo(q.problem)):
        state = bl.warm_up(solver, solver.init(jnp.ones(2), jnp.zeros(2)), steps=2000)
        np.testing.assert_allclose(state.y, q.inner_solution(jnp.ones(2)), rtol=1e-6)
        np.testing.assert_array_equal(state.x, jnp.ones(2))


def test_starting_at_the_solution_stays_there():
    """No division by what has not been met: all gradients vanish from the first step on."""
    problem = bl.Problem(
        outer=lambda x, y: jnp.sum(x**2) + jnp.sum(y**2), inner=lambda x, y: jnp.sum((y - x) ** 2)
    )
    for solver in (tuning_free(problem), s_tfbo(problem), d_tfbo(problem)):
        state, trace = run(solver, jnp.zeros(3), jnp.zeros(3), steps=5, record=lambda s, i: i.outer_value)
        np.testing.assert_array_equal(state.x, jnp.zeros(3))
        np.testing.assert_array_equal(trace, jnp.zeros(5))


@pytest.mark.mathematics("s_tfbo")
def test_s_tfbo_is_its_recurrence():
    q = bl.problems.quadratic(mu=0.3, kappa=3.0, m=0.7)
    z, L, m = np.array([0.9, 0.3]), 0.9, 0.7
    x, y, v, a, b, c = np.array([0.5, -1.0]), np.array([1.0, 2.0]), np.zeros(2), 0.25, 0.25, 0.25
    solver = s_tfbo(q.problem, accumulators=0.5)
    state, step = solver.init(jnp.asarray(x), jnp.asarray(y)), jax.jit(solver.step)
    for _ in range(6):
        g, r, h = z * y - L * x + 1, z * v - m, z * x + L * v
        a, b, c = a + h @ h, b + g @ g, c + r @ r
        phi = np.sqrt(max(b, c))
        x, y, v = x - h / (np.sqrt(a) * phi), y - g / np.sqrt(b), v - r / phi
        state, info = step(state)
        np.testing.assert_allclose(state.x, x, rtol=1e-12)
        np.testing.assert_allclose(state.y, y, rtol=1e-12)
        np.testing.assert_allclose(state.v, v, rtol=1e-12)
        np.testing.assert_allclose(info.metrics["outer_step_size"], 1 / (np.sqrt(a) * phi), rtol=1e-12)


@pytest.mark.mathematics("d_tfbo")
def test_d_tfbo_is_its_recurrence():
    """As the authors' program has it, with a full batch and without the 10⁻⁸ that it adds to the accumulators."""
    q = bl.problems.quadratic(mu=0.3, kappa=3.0, m=0.7)
    z, L, m = np.array([0.9, 0.3]), 0.9, 0.7
    x, y, v, a, b, c = np.array([0.5, -1.0]), np.array([1.0, 2.0]), np.zeros(2), 0.25, 0.25, 0.25
    solver = d_tfbo(q.problem, accumulators=0.5, inner_steps=3, adjoint_steps=2)
    state, step = solver.init(jnp.asarray(x), jnp.asarray(y)), jax.jit(solver.step)
    for _ in range(6):
        for _ in range(3):
            g = z * y - L * x + 1
            b += g @ g
            y = y - g / np.sqrt(b)
        for _ in range(2):
            r = z * v - m
            c += r @ r
            v = v - r / np.sqrt(c)
        h = z * x + L * v
        a += h @ h
        x = x - h / np.sqrt(a)
        state, _ = step(state)
        np.testing.assert_allclose(state.x, x, rtol=1e-12)
        np.testing.assert_allclose(state.y, y, rtol=1e-12)
        np.testing.assert_allclose(state.v, v, rtol=1e-12)


@pytest.mark.parametrize("accumulators", [1e-6, 1.0])
def test_s_tfbo_converges_from_accumulators_of_six_orders_of_magnitude(accumulators):
    p, dense = ridge()
    state, _ = run(
        s_tfbo(p.problem, accumulators=accumulators), jnp.zeros(5), jnp.zeros(5), p.data, steps=20_000
    )
    assert jnp.linalg.norm(dense.hypergradient(state.x)) < 1e-8


def test_s_tfbo_depends_on_units():
    """The reason for the other method: with f a thousand times larger 20,000 steps are not enough."""
    p, dense = ridge()
    state, _ = run(s_tfbo(in_units(p, outer=1e3)), jnp.zeros(5), jnp.zeros(5), p.data, steps=20_000)
    assert jnp.linalg.norm(dense.hypergradient(state.x)) > 0.1 * jnp.linalg.norm(
        dense.hypergradient(jnp.zeros(5))
    )


@pytest.mark.slow
def test_bad_input():
    problem = bl.problems.quadratic().problem
    with pytest.raises(TypeError, match="project"):
        tuning_free(problem, project=3)
    init = lambda project: tuning_free(problem, project=project).init(jnp.ones(2), jnp.zeros(2))
    with pytest.raises(
        TypeError, match=r"project returned float64\[1\], not a tree like its argument, float64\[2\]"
    ):
        init(lambda x: x[:1])
    with pytest.raises(TypeError, match="project returned float32"):
        init(lambda x: x.astype(jnp.float32))
    with pytest.raises(ValueError, match="project returned NaN"):
        init(lambda x: x * jnp.nan)
    away = tuning_free(problem, project=lambda x: jnp.where(x == 1, x, jnp.nan))
    assert "all NaN" in bl.run(away, jnp.ones(2), jnp.zeros(2), steps=12).status.message
    with pytest.raises(ValueError, match=r"tol is the weight of .* and at most 1, not 2\.0"):
        tuning_free(problem, tol=2.0)
    with pytest.raises(ValueError, match="max_inner_steps"):
        tuning_free(problem, max_inner_steps=0)
    for make in (s_tfbo, d_tfbo):
        with pytest.raises(ValueError, match=r"initial accumulators must be a positive number, not -1\.0"):
            make(problem, accumulators=-1.0)
    with pytest.raises(ValueError, match="adjoint_steps"):
        d_tfbo(problem, adjoint_steps=0)


def test_an_end_that_is_not_to_be_relied_on_is_told():
    """A line search lets f fall, and every pass ∇_y g: where they have not, y was not found where steps were judged."""
    solver = tuning_free(bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y)))
    good = {
        "outer_value": np.array([0.7, 0.6, 0.2, 0.1]),
        "noise": np.zeros(4),
        "inner_gradient": np.array([1.0, 1e-3, 1e-3, 1e-9]),
    }
    assert solver.remark(good) == ""
    assert "risen from 0.6 to 1.1" in solver.remark(good | {"outer_value": np.array([0.7, 0.6, 0.2, 1.1])})
    unsolved = good | {"inner_gradient": np.array([1.0, 1e-3, 2.0, 5.4])}
    assert "inner gradient is 5.4" in solver.remark(unsolved)
    assert (
        solver.remark(unsolved | {"noise": np.array([0.0, 0.0, 0.5, 1.0])}) == ""
    )  # a batch's gradient is no measure
