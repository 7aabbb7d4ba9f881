"""Derivatives against dense Hessians, finite differences and a hand-worked closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import bilevel as bl
from zoo import PROBLEMS


def flat(problem):
    """f and g as functions of two flat vectors, the points, and a direction in y."""
    case = PROBLEMS[problem](jnp.float64)
    rng = np.random.default_rng(0)
    x0, unravel_x = ravel_pytree(case.x0)
    y0, unravel_y = ravel_pytree(case.y0)
    draw = lambda v: jnp.asarray(rng.normal(size=v.shape))
    x, y, v = draw(x0), draw(y0), draw(y0)
    f = lambda x, y: case.problem.f(unravel_x(x), unravel_y(y), case.data)
    g = lambda x, y: case.problem.g(unravel_x(x), unravel_y(y), case.data)
    trees = unravel_x(x), unravel_y(y), unravel_y(v)
    return case, f, g, (x, y, v), trees


def central(function, point, direction, h=1e-5):
    return (function(point + h * direction) - function(point - h * direction)) / (2 * h)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_products_equal_dense_hessian_blocks(problem):
    case, _, g, (x, y, v), (tx, ty, tv) = flat(problem)
    lin = case.problem.oracles.linearise(tx, ty, case.data)
    yy = jax.hessian(g, argnums=1)(x, y)
    xy = jax.jacfwd(jax.grad(g, argnums=0), argnums=1)(x, y)
    np.testing.assert_allclose(ravel_pytree(lin.hessian(tv))[0], yy @ v, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(ravel_pytree(lin.cross(tv))[0], xy @ v, rtol=1e-12, atol=1e-13)
    assert jax.tree.structure(lin.cross(tv)) == jax.tree.structure(case.x0)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradients_and_products_equal_finite_differences(problem):
    case, f, g, (x, y, v), (tx, ty, tv) = flat(problem)
    oracles = case.problem.oracles
    grad_y = lambda x, y: np.array([central(lambda s, e=e: g(x, s), y, e) for e in jnp.eye(y.size)])
    lin, outer = oracles.linearise(tx, ty, case.data), oracles.outer_gradients(tx, ty, case.data)
    np.testing.assert_allclose(ravel_pytree(lin.gradient)[0], grad_y(x, y), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(
        ravel_pytree(oracles.inner_gradient(tx, ty, case.data))[0], grad_y(x, y), rtol=1e-7, atol=1e-8
    )
    f_x = np.array([central(lambda s, e=e: f(s, y), x, e) for e in jnp.eye(x.size)])
    f_y = np.array([central(lambda s, e=e: f(x, s), y, e) for e in jnp.eye(y.size)])
    np.testing.assert_allclose(ravel_pytree(outer.x)[0], f_x, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(ravel_pytree(outer.y)[0], f_y, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(outer.value, f(x, y), rtol=1e-14)
    # second differences of g alone, no automatic differentiation anywhere
    along_v = lambda function: central(function, y, v, 1e-3)
    hessian_v = np.array(
        [along_v(lambda s, e=e: central(lambda t: g(x, t), s, e, 1e-3)) for e in jnp.eye(y.size)]
    )
    cross_v = np.array(
        [along_v(lambda s, e=e: central(lambda t: g(t, s), x, e, 1e-3)) for e in jnp.eye(x.size)]
    )
    np.testing.assert_allclose(ravel_pytree(lin.hessian(tv))[0], hessian_v, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(ravel_pytree(lin.cross(tv))[0], cross_v, rtol=2e-5, atol=2e-5)


def test_the_quadratic_by_hand():
    q = bl.problems.quadratic(mu=0.3, kappa=4.0, m=0.7)
    x, y, v = jnp.array([0.5, -2.0]), jnp.array([1.5, 0.25]), jnp.array([-1.0, 3.0])
    lin, outer = q.problem.oracles.linearise(x, y), q.problem.oracles.outer_gradients(x, y)
    L, mu = 1.2, 0.3
    np.testing.assert_allclose(lin.gradient, [L * 1.5 - L * 0.5 + 1, mu * 0.25 + L * 2.0 + 1], rtol=1e-14)
    np.testing.assert_allclose(lin.hessian(v), [-L, 3 * mu], rtol=1e-14)
    np.testing.assert_allclose(lin.cross(v), [L, -3 * L], rtol=1e-14)
    np.testing.assert_allclose(outer.x, [L * 0.5, -2 * mu], rtol=1e-14)
    np.testing.assert_allclose(outer.y, [0.7, 0.7], rtol=1e-14)


def test_closed_forms_of_the_quadratic_agree_with_autodiff_through_the_solution():
    q = bl.problems.quadratic(mu=0.3, kappa=4.0, m=0.7)
    x = jnp.array([0.5, -2.0])
    y_star = q.inner_solution(x)
    np.testing.assert_allclose(jax.grad(q.g, 1)(x, y_star), 0, atol=1e-14)
    np.testing.assert_allclose(jax.grad(q.value)(x), q.hypergradient(x), rtol=1e-13)
    np.testing.assert_allclose(q.hypergradient(q.solution), 0, atol=1e-14)
    np.testing.assert_allclose(
        jax.hessian(q.g, 1)(x, y_star) @ q.adjoint_solution(x), jax.grad(q.f, 1)(x, y_star)
    )
