"""Algorithms 1 and 2 line by line against NumPy, and their limits against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from marks import slow

A, ETA, BETA = 0.11, 0.07, 0.05


@pytest.fixture
def nonlinear():
    """A problem whose second derivatives vary with x and y, so that the point they are taken at matters."""
    f = lambda x, y: jnp.sum(jnp.sin(x) * y**2) + 0.5 * jnp.sum(y * jnp.cos(x[::-1]))
    g = lambda x, y: jnp.sum(jnp.cosh(y) + 0.5 * (1 + x**2) * y**2 - jnp.sin(x) * y) + 0.1 * y[0] * y[1]
    grad_y = lambda x, y: np.sinh(y) + (1 + x**2) * y - np.sin(x) + 0.1 * y[::-1]
    hess = lambda x, y: np.diag(np.cosh(y) + 1 + x**2) + 0.1 * np.eye(2)[::-1]
    cross = lambda x, y: np.diag(2 * x * y - np.cos(x))
    f_x = lambda x, y: np.cos(x) * y**2 - 0.5 * (y * np.sin(x[::-1]))[::-1]
    f_y = lambda x, y: 2 * np.sin(x) * y + 0.5 * np.cos(x[::-1])
    return bl.Problem(inner=g, outer=f), grad_y, hess, cross, f_x, f_y


@pytest.mark.slow
def test_aid_is_algorithm_1_in_its_order(nonlinear):
    problem, grad_y, hess, cross, f_x, f_y = nonlinear
    x, y, v = np.array([0.4, -0.8]), np.array([1.1, -0.3]), np.zeros(2)
    state = bl.aid(problem, inner=A, adjoint=ETA, outer=BETA).init(jnp.asarray(x), jnp.asarray(y))
    step = bl.aid(problem, inner=A, adjoint=ETA, outer=BETA).step
    for _ in range(5):
        y_hat = y - A * grad_y(x, y)
        v_hat = v - ETA * hess(x, y_hat) @ v + ETA * f_y(x, y_hat)
        hypergradient = f_x(x, y_hat) - cross(x, y_hat) @ v_hat
        value = problem.f(x, y_hat)
        inner_gradient = grad_y(x, y)
        x, y, v = x - BETA * hypergradient, y_hat, v_hat
        state, info = step(state)
        np.testing.assert_allclose(state.y, y, rtol=1e-13)
        np.testing.assert_allclose(state.v, v, rtol=1e-13)
        np.testing.assert_allclose(state.x, x, rtol=1e-13)
        np.testing.assert_allclose(info.hypergradient, hypergradient, rtol=1e-12)
        np.testing.assert_allclose(info.inner_gradient, inner_gradient, rtol=1e-12)
        np.testing.assert_allclose(info.outer_value, value, rtol=1e-13)


@pytest.mark.mathematics("itd")
def test_itd_is_algorithm_2_with_the_cross_product_at_the_warm_start(nonlinear):
    problem, grad_y, _, cross, f_x, f_y = nonlinear
    x, y = np.array([0.4, -0.8]), np.array([1.1, -0.3])
    solver = bl.itd(problem, inner=A, outer=BETA)
    state = solver.init(jnp.asarray(x), jnp.asarray(y))
    for _ in range(5):
        y_hat = y - A * grad_y(x, y)
        hypergradient = f_x(x, y_hat) - A * cross(x, y) @ f_y(x, y_hat)
        x, y = x - BETA * hypergradient, y_hat
        state, info = solver.step(state)
        np.testing.assert_allclose(state.y, y, rtol=1e-13)
        np.testing.assert_allclose(state.x, x, rtol=1e-13)
        np.testing.assert_allclose(info.hypergradient, hypergradient, rtol=1e-12)


RULES = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "rmsprop": optax.rmsprop(0.05),
    "adam": optax.adam(0.05),
    "adamw": optax.adamw(0.05, weight_decay=0.1),
    "clipped": optax.chain(optax.clip_by_global_norm(0.3), optax.sgd(0.1, momentum=0.5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_itd_differentiates_through_any_inner_rule(nonlinear, rule):
    """The hypergradient equals automatic differentiation through the whole step, at every step of a run."""
    problem = nonlinear[0]
    with jax.numpy_dtype_promotion("standard"):  # optax's adam needs it
        solver = bl.itd(problem, inner=rule, outer=BETA)
        state = solver.init(jnp.array([0.4, -0.8]), jnp.array([1.1, -0.3]))

        def whole_step(x, y, memory):
            updates, _ = rule.update(jax.grad(problem.inner, 1)(x, y), memory, y)
            return problem.outer(x, optax.apply_updates(y, updates))

        for _ in range(4):
            expected = jax.grad(whole_step)(state.x, state.y, state.inner)
            state, info = solver.step(state)
            np.testing.assert_allclose(info.hypergradient, expected, rtol=1e-11)


@pytest.mark.parametrize("kappa", [slow(1.5), 2.0, slow(10.0)])
def test_limits_on_the_quadratic(kappa):
    """AID reaches the stationary point; ITD stops where ‖∇Φ‖² = m²(κ−1)², both in closed form."""
    q = bl.problems.quadratic(kappa=kappa)
    alpha, beta = 1 / q.L, 0.5 / (q.L * kappa**2)
    x0 = jnp.ones(2)
    aid = bl.run(
        bl.aid(q.problem, inner=alpha, adjoint=alpha, outer=beta), x0, q.inner_solution(x0), steps=60_000
    )
    np.testing.assert_allclose(aid.x, q.solution, rtol=1e-9)
    assert jnp.sum(q.hypergradient(aid.x) ** 2) < 1e-16
    np.testing.assert_allclose(aid.state.v, q.adjoint_solution(aid.x), rtol=1e-9)
    np.testing.assert_allclose(aid.y, q.inner_solution(aid.x), rtol=1e-9)

    itd = bl.run(bl.itd(q.problem, inner=alpha, outer=beta), x0, q.inner_solution(x0), steps=60_000)
    np.testing.assert_allclose(itd.x, -0.1 / np.array([q.L, q.mu]), rtol=1e-9)
    np.testing.assert_allclose(jnp.sum(q.hypergradient(itd.x) ** 2), 0.01 * (kappa - 1) ** 2, rtol=1e-8)
    assert itd.trace["hypergradient_norm"][-1] < 1e-8  # the estimate vanishes where the truth does not


def test_a_whole_grid_of_condition_numbers_in_one_vmapped_call():
    kappas = jnp.linspace(1.5, 8.0, 100)

    def limit(kappa):
        q = bl.problems.quadratic(kappa=kappa)
        solver = bl.itd(q.problem, inner=1 / q.L, outer=0.5 / (q.L * kappa**2))
        x0 = jnp.ones(2)
        state, _ = bl.scan(
            solver, solver.init(x0, q.inner_solution(x0)), steps=20_000, record=lambda s, i: None
        )
        return jnp.sum(q.hypergradient(state.x) ** 2)

    np.testing.assert_allclose(jax.jit(jax.vmap(limit))(kappas), 0.01 * (kappas - 1) ** 2, rtol=1e-8)


def test_warm_up_is_gradient_descent_on_y_alone():
    q = bl.problems.quadratic(kappa=4.0)
    solver = bl.aid(q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=0.1)
    x0, y0 = jnp.ones(2), jnp.array([3.0, -1.0])
    for steps in (0, 1, 7):
        state = bl.warm_up(solver, solver.init(x0, y0), steps=steps)
        contraction = np.array([0.0, 1 - 1 / 4.0]) ** steps  # (I − Z/L)^n, diagonal
        np.testing.assert_allclose(
            state.y, q.inner_solution(x0) + contraction * (y0 - q.inner_solution(x0)), rtol=1e-12
        )
        np.testing.assert_array_equal(state.x, x0)
    warmed = bl.run(solver, x0, y0, steps=1, warmup=7)
    by_hand, _ = solver.step(bl.warm_up(solver, solver.init(x0, y0), steps=7))
    np.testing.assert_allclose(warmed.y, by_hand.y, rtol=1e-14)
