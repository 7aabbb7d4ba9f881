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


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_products_equal_dense_hessian_blocks(problem):
    case, _, g, (x, y, v), (tx, ty, tv) = flat(problem)
    oracles, at = case.problem.oracles, (tx, ty)
    lin, curvature = oracles.linearize(*at, case.data), oracles.curvature(*at, case.data)
    along = oracles.along(*at, tv, case.data)
    yy = jax.hessian(g, argnums=1)(x, y)
    xy = jax.jacfwd(jax.grad(g, argnums=0), argnums=1)(x, y)
    shared, known = curvature.shared(), curvature.knowing(tv, along)
    for hessian in (lin.hessian(tv), curvature.hessian(tv), shared.hessian(tv), along.hessian):
        np.testing.assert_allclose(ravel_pytree(hessian)[0], yy @ v, rtol=1e-12, atol=1e-13)
    for cross in (lin.cross(tv), curvature.cross(tv), shared.cross(tv), along.cross):
        np.testing.assert_allclose(ravel_pytree(cross)[0], xy @ v, rtol=1e-12, atol=1e-13)
        assert jax.tree.structure(cross) == jax.tree.structure(case.x0)
    gradient = ravel_pytree(jax.grad(lambda y: g(x, y))(y))[0]
    np.testing.assert_allclose(ravel_pytree(along.gradient)[0], gradient, rtol=1e-12, atol=1e-13)

    # What is known along v is not taken again, and nothing else is mistaken for it.
    assert known.hessian(tv) is along.hessian
    assert known.cross(tv) is along.cross
    other = jax.tree.map(lambda a: 2 * a, tv)
    np.testing.assert_allclose(ravel_pytree(known.hessian(other))[0], 2 * yy @ v, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(ravel_pytree(known.cross(other))[0], 2 * xy @ v, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradients_and_products_equal_finite_differences(problem):
    case, f, g, (x, y, v), (tx, ty, tv) = flat(problem)
    oracles = case.problem.oracles
    grad_y = lambda x, y: np.array([central(lambda s, e=e: g(x, s), y, e) for e in jnp.eye(y.size)])
    lin, outer = oracles.linearize(tx, ty, case.data), oracles.outer_gradients(tx, ty, case.data)
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
    lin, outer = q.problem.oracles.linearize(x, y), q.problem.oracles.outer_gradients(x, y)
    L, mu = 1.2, 0.3
    np.testing.assert_allclose(lin.gradient, [L * 1.5 - L * 0.5 + 1, mu * 0.25 + L * 2.0 + 1], rtol=1e-14)
    np.testing.assert_allclose(lin.hessian(v), [-L, 3 * mu], rtol=1e-14)
    np.testing.assert_allclose(lin.cross(v), [L, -3 * L], rtol=1e-14)
    np.testing.assert_allclose(outer.x, [L * 0.5, -2 * mu], rtol=1e-14)
    np.testing.assert_allclose(outer.y, [0.7, 0.7], rtol=1e-14)


@pytest.mark.slow
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


def test_a_backward_pass_of_one_s_own_is_kept_by_every_product():
    """Forward over reverse differentiates the backward pass that the user wrote, here one of a clipped derivative."""

    @jax.custom_vjp
    def clipped(a):
        return a**3

    clipped.defvjp(lambda a: (a**3, a), lambda a, c: (c * jnp.minimum(3 * a**2, 2.0),))
    oracles = bl.Problem(inner=lambda x, y: jnp.sum(x * clipped(y)), outer=lambda x, y: x @ y).oracles
    x, y, v = jnp.array([2.0, 3.0]), jnp.array([0.5, 2.0]), jnp.array([1.0, 1.0])
    at = oracles.curvature(x, y)
    for hessian in (at.hessian(v), at.shared().hessian(v), oracles.along(x, y, v).hessian):
        np.testing.assert_allclose(hessian, [2 * 6 * 0.5, 0.0], rtol=1e-14)
    np.testing.assert_allclose(oracles.along(x, y, v).gradient, [2 * 0.75, 3 * 2.0], rtol=1e-14)
    for cross in (
        at.cross(v),
        at.shared().cross(v),
        oracles.along(x, y, v).cross,
        oracles.linearize(x, y).cross(v),
    ):
        np.testing.assert_allclose(cross, [3 * 0.5**2, 3 * 2.0**2], rtol=1e-14)  # of the forward pass


def test_the_earlier_spelling_of_linearize_warns():
    oracles = bl.problems.quadratic(kappa=2.0).problem.oracles
    with pytest.warns(DeprecationWarning, match="linearize"):
        found = oracles.linearise(jnp.ones(2), jnp.zeros(2))
    assert jnp.array_equal(found.gradient, oracles.inner_gradient(jnp.ones(2), jnp.zeros(2)))
