"""The hypergradient at a point, against closed forms and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import bilevel as bl
from zoo import PROBLEMS

QUADRATIC = bl.problems.quadratic(kappa=4.0)
X = jnp.array([0.7, -1.3])
Y = QUADRATIC.inner_solution(X)


def test_it_is_the_closed_form_at_the_inner_solution():
    found = bl.hypergradient(QUADRATIC.problem, X, Y)
    np.testing.assert_allclose(found, QUADRATIC.hypergradient(X), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge_logistic", "trees"])
def test_it_is_the_slope_of_the_value(name):
    case = PROBLEMS[name](jnp.float64)
    x, unravel = ravel_pytree(case.x0)
    solve = lambda x: bl.theory.exact(case.problem, unravel(x), case.y0, case.data)
    found = bl.hypergradient(
        case.problem, unravel(x), solve(x).y, case.data, adjoint=bl.adjoints.cg(tol=1e-12)
    )
    direction, h = jnp.cos(jnp.arange(x.size, dtype=x.dtype)), 1e-5
    slope = (solve(x + h * direction).value - solve(x - h * direction).value) / (2 * h)
    np.testing.assert_allclose(ravel_pytree(found)[0] @ direction, slope, rtol=1e-5, atol=1e-8)


def test_a_step_size_is_one_step_from_zero():
    found = bl.hypergradient(QUADRATIC.problem, X, Y, adjoint=0.5)
    _, by_x, by_y = QUADRATIC.problem.oracles.outer_gradients(X, Y)
    cross = QUADRATIC.problem.oracles.curvature(X, Y).cross
    np.testing.assert_allclose(found, by_x - cross(0.5 * by_y), rtol=1e-12)


@pytest.mark.parametrize(
    "adjoint",
    [
        bl.adjoints.minres(1e-12),
        bl.adjoints.steps(1 / QUADRATIC.L, 200),
        bl.adjoints.steps(optax.sgd(1 / QUADRATIC.L, momentum=0.5), 300),
        bl.adjoints.neumann(1 / QUADRATIC.L, 200),
    ],
    ids=lambda adjoint: adjoint.name,
)
def test_every_adjoint_solves_the_same_system(adjoint):
    found = jax.jit(lambda x: bl.hypergradient(QUADRATIC.problem, x, Y, adjoint=adjoint))(X)
    np.testing.assert_allclose(found, QUADRATIC.hypergradient(X), rtol=1e-3)


def test_it_maps_over_points():
    xs = jnp.stack([X, 2 * X])
    found = jax.vmap(lambda x: bl.hypergradient(QUADRATIC.problem, x, QUADRATIC.inner_solution(x)))(xs)
    np.testing.assert_allclose(found, jax.vmap(QUADRATIC.hypergradient)(xs), rtol=1e-9)


@pytest.mark.slow
def test_it_has_derivatives_in_both_modes():
    problem = bl.Problem(
        outer=lambda x, y, data: jnp.sum((y - data) ** 2),
        inner=lambda x, y: 0.5 * jnp.sum((1 + x**2) * y**2) - jnp.sum(y),
    )
    minimizer = lambda x: 1 / (1 + x**2)
    value = lambda x, data: jnp.sum((minimizer(x) - data) ** 2)
    at = lambda adjoint: (
        lambda x, data: bl.hypergradient(problem, x, minimizer(x), bl.Batch(outer=data), adjoint=adjoint)
    )
    data = jnp.array([0.1, 0.2])
    for argument in (0, 1):
        expected = jax.jacfwd(jax.grad(value), argument)(X, data)
        forward = jax.jacfwd(at(bl.adjoints.cg(1e-14)), argument)(X, data)
        reverse = jax.jacrev(at(bl.adjoints.steps(0.3, 300)), argument)(X, data)
        np.testing.assert_allclose(forward, expected, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(reverse, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.slow
def test_a_hand_written_loop_reaches_the_solution():
    problem, x, y = QUADRATIC.problem, X, jnp.zeros(2)
    for _ in range(300):
        y = y - problem.oracles.inner_gradient(x, y) / QUADRATIC.L
        x = x - 0.5 * bl.hypergradient(problem, x, y)
    np.testing.assert_allclose(x, QUADRATIC.solution, rtol=1e-6)


def test_the_same_call_compiles_once():
    traced = []

    def inner(x, y):
        traced.append(x)
        return jnp.sum((y - x) ** 2)

    problem = bl.Problem(outer=lambda x, y: jnp.sum(y**2), inner=inner)
    first = bl.hypergradient(problem, X, X, adjoint=0.1)
    before = len(traced)
    second = bl.hypergradient(problem, X, X, adjoint=0.5)
    assert len(traced) == before
    np.testing.assert_allclose(5 * first, second)


def test_a_changed_schedule_is_read_again():
    rate = [0.1]
    adjoint = bl.adjoints.one_step(optax.sgd(lambda step: jnp.asarray(rate[0])))
    first = bl.hypergradient(QUADRATIC.problem, X, Y, adjoint=adjoint)
    rate[0] = 0.4
    second = bl.hypergradient(QUADRATIC.problem, X, Y, adjoint=adjoint)
    assert not np.allclose(first, second)


def test_a_problem_with_a_proximal_map_is_refused():
    problem = bl.Problem(
        outer=lambda x, y: jnp.sum(y**2),
        inner=lambda x, y: jnp.sum((y - x) ** 2),
        prox=bl.prox.l1(lambda x: jnp.exp(x)),
    )
    with pytest.raises(
        ValueError, match=r"bl\.hypergradient cannot use a problem with a proximal map.*bl\.aid"
    ):
        bl.hypergradient(problem, X, X)


@pytest.mark.slow
def test_points_and_data_are_checked():
    with pytest.raises(ValueError, match="x contains NaN"):
        bl.hypergradient(QUADRATIC.problem, X * jnp.nan, Y)
    with pytest.raises(ValueError, match="outer data were given"):
        bl.hypergradient(QUADRATIC.problem, X, Y, bl.Batch(outer=X))
