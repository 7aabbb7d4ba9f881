"""Methods without step sizes: what the units of a problem may not change, and that they converge whatever it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from implicit_reference import ridge

import bilevel as bl
from bilevel import s_tfbo, tuning_free
from bilevel.counting import Counts, oracle_calls


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


def test_the_iterates_do_not_depend_on_the_units_of_f_g_and_y():
    """Exactly, by the recurrence: the units are powers of two here, so that not even rounding differs."""
    p, _ = ridge()
    start = jnp.full(5, 0.5)
    keep = lambda state, info: (state.x, state.y)
    _, (x, y) = run(tuning_free(p.problem), jnp.zeros(5), start, p.data, 60, keep)
    for units in (
        dict(outer=2.0**20, inner=2.0**-12, y=2.0**15),
        dict(outer=2.0**-20, inner=2.0**12, y=2.0**-15),
    ):
        scaled = tuning_free(in_units(p, **units))
        by = units["y"]
        _, (also_x, also_y) = run(scaled, jnp.zeros(5), by * start, p.data, 60, keep)
        np.testing.assert_allclose(also_x, x, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(also_y / by, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kappa", [2.0, 10.0, 100.0])
def test_the_paper_s_quadratic_is_solved_without_a_step_size(kappa):
    q = bl.problems.quadratic(kappa=kappa)
    state, _ = run(tuning_free(q.problem), jnp.ones(2), jnp.zeros(2), steps=20_000)
    np.testing.assert_allclose(state.x, q.solution, rtol=1e-9)
    np.testing.assert_allclose(state.y, q.inner_solution(q.solution), rtol=1e-9)
    np.testing.assert_allclose(state.v, q.adjoint_solution(q.solution), rtol=1e-9)
    np.testing.assert_allclose(state.curvature, q.L, rtol=1e-9)


def test_six_orders_of_magnitude_of_scale_all_converge():
    p, dense = ridge()
    last = lambda scale: (
        run(tuning_free(p.problem, scale=scale), jnp.zeros(5), jnp.zeros(5), p.data, 20_000)[0].x
    )
    for x in jax.vmap(last)(10.0 ** jnp.arange(-3.0, 4.0)):
        assert jnp.linalg.norm(dense.hypergradient(x)) < 1e-8


def test_ridge_logistic_in_any_units():
    p, dense = ridge()
    one = jnp.ones(10)
    units = dict(
        outer=one.at[1].set(1e3).at[2].set(1e-3).at[9].set(1e3),
        inner=one.at[3].set(1e3).at[4].set(1e-3).at[9].set(1e-3),
        y=one.at[5].set(1e3).at[6].set(1e-3).at[9].set(1e-3),
        x=one.at[7].set(1e3).at[8].set(1e-3).at[9].set(30.0),
    )
    solver = lambda units: tuning_free(in_units(p, **units))
    last = lambda units: run(solver(units), jnp.zeros(5), jnp.zeros(5), p.data, 20_000)[0].x
    for x, unit in zip(jax.vmap(last)(units), units["x"], strict=True):
        assert jnp.linalg.norm(dense.hypergradient(x / unit)) < 1e-8


@pytest.mark.parametrize("seed", range(3))
def test_levels_that_feed_back_on_each_other(seed):
    """With f = ½‖y − c‖² the adjoint follows y and y follows x: too long an outer step would spiral away."""
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    H, B, c = Q @ np.diag(np.geomspace(0.1, 1.0, 6)) @ Q.T, rng.normal(size=(6, 4)) / 2, rng.normal(size=6)
    problem = bl.Problem(
        outer=lambda x, y: 0.5 * jnp.sum((y - c) ** 2) + 0.05 * jnp.sum(x**2),
        inner=lambda x, y: 0.5 * y @ H @ y - y @ (B @ x),
    )
    K = np.linalg.solve(H, B)
    solution = np.linalg.solve(0.1 * np.eye(4) + K.T @ K, K.T @ c)
    state, _ = run(tuning_free(problem), jnp.zeros(4), jnp.zeros(6), steps=40_000)
    gradient = lambda x: 0.1 * x + K.T @ (K @ x - c)
    assert np.linalg.norm(gradient(state.x)) < 1e-3 * np.linalg.norm(gradient(np.zeros(4)))
    assert np.linalg.norm(state.x - solution) < 1e-2 * np.linalg.norm(solution)


def test_warm_up_solves_the_inner_problem_at_x0():
    q = bl.problems.quadratic(kappa=4.0)
    for solver in (tuning_free(q.problem), s_tfbo(q.problem)):
        state = bl.warm_up(solver, solver.init(jnp.ones(2), jnp.zeros(2)), steps=2000)
        np.testing.assert_allclose(state.y, q.inner_solution(jnp.ones(2)), rtol=1e-6)
        np.testing.assert_array_equal(state.x, jnp.ones(2))


def test_starting_at_the_solution_stays_there():
    """No division by what has not been met: all gradients vanish from the first step on."""
    problem = bl.Problem(
        outer=lambda x, y: jnp.sum(x**2) + jnp.sum(y**2), inner=lambda x, y: jnp.sum((y - x) ** 2)
    )
    for solver in (tuning_free(problem), s_tfbo(problem)):
        state, trace = run(solver, jnp.zeros(3), jnp.zeros(3), steps=5, record=lambda s, i: i.outer_value)
        np.testing.assert_array_equal(state.x, jnp.zeros(3))
        np.testing.assert_array_equal(trace, jnp.zeros(5))


def test_s_tfbo_is_its_recurrence():
    q = bl.problems.quadratic(mu=0.3, kappa=3.0, m=0.7)
    z, L, m = np.array([0.9, 0.3]), 0.9, 0.7
    x, y, v, a, b, c = np.array([0.5, -1.0]), np.array([1.0, 2.0]), np.zeros(2), 0.25, 0.25, 0.25
    solver = s_tfbo(q.problem, accumulators=0.5)
    state = solver.init(jnp.asarray(x), jnp.asarray(y))
    for _ in range(6):
        g, r, h = z * y - L * x + 1, z * v - m, z * x + L * v
        a, b, c = a + h @ h, b + g @ g, c + r @ r
        phi = np.sqrt(max(b, c))
        x, y, v = x - h / (np.sqrt(a) * phi), y - g / np.sqrt(b), v - r / phi
        state, info = jax.jit(solver.step)(state)
        np.testing.assert_allclose(state.x, x, rtol=1e-12)
        np.testing.assert_allclose(state.y, y, rtol=1e-12)
        np.testing.assert_allclose(state.v, v, rtol=1e-12)
        np.testing.assert_allclose(info.metrics["outer_step_size"], 1 / (np.sqrt(a) * phi), rtol=1e-12)


@pytest.mark.parametrize("accumulators", [1e-6, 1e-3, 1.0])
def test_s_tfbo_converges_from_accumulators_of_six_orders_of_magnitude(accumulators):
    p, dense = ridge()
    state, _ = run(
        s_tfbo(p.problem, accumulators=accumulators), jnp.zeros(5), jnp.zeros(5), p.data, steps=20_000
    )
    assert jnp.linalg.norm(dense.hypergradient(state.x)) < 1e-8


@pytest.mark.parametrize(
    ("make", "expected"), [(tuning_free, Counts(2, 1, 2, 1)), (s_tfbo, Counts(2, 1, 1, 1))]
)
def test_counts(make, expected):
    solver = make(bl.problems.quadratic().problem)
    assert oracle_calls(solver, solver.init(jnp.ones(2), jnp.zeros(2))) == expected


def test_bad_input():
    problem = bl.problems.quadratic().problem
    with pytest.raises(ValueError, match="scale must be a positive number, not 0"):
        tuning_free(problem, scale=0.0)
    with pytest.raises(ValueError, match=r"initial accumulators must be a positive number, not -1\.0"):
        s_tfbo(problem, accumulators=-1.0)
