"""The adjoint ingredients on linear systems small enough to solve densely."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel import adjoints
from bilevel.oracles import Curvature

SIZE = 12
RNG = np.random.default_rng(0)
BASIS = np.linalg.qr(RNG.normal(size=(SIZE, SIZE)))[0]
POSITIVE = jnp.asarray(BASIS * np.geomspace(0.05, 1.0, SIZE) @ BASIS.T)
INDEFINITE = jnp.asarray(BASIS * np.linspace(-0.7, 1.0, SIZE) @ BASIS.T)
B, V0 = jnp.asarray(RNG.normal(size=SIZE)), jnp.asarray(RNG.normal(size=SIZE))


def split(v):
    return {"a": v[:5], "b": v[5:].reshape(7, 1)}


def join(tree):
    return jnp.concatenate([tree["a"], tree["b"].ravel()])


def system(H):
    """A linearized inner objective with Hessian H, on a tree of arrays."""
    none = lambda v: v
    return Curvature(lambda v: split(H @ join(v)), none)


def solve(adjoint, H, b=B, v=V0):
    def program(b, v):
        return adjoint.solve(system(H), split(b), split(v), adjoint.init(split(v)))

    v, memory, metrics = jax.jit(program)(b, v)
    return join(v), memory, metrics


@pytest.mark.parametrize("make", [adjoints.cg, adjoints.minres])
@pytest.mark.parametrize("tol", [1e-3, 1e-10])
def test_krylov_solvers_meet_their_tolerance_and_report_the_true_residual(make, tol):
    v, _, metrics = solve(make(tol), POSITIVE)
    left = float(jnp.linalg.norm(POSITIVE @ v - B))
    assert left <= tol * float(jnp.linalg.norm(B)) * (1 + 1e-6)
    np.testing.assert_allclose(metrics["adjoint_residual"], left, rtol=1e-3, atol=1e-14)
    assert 0 < metrics["adjoint_steps"] <= 2 * SIZE


@pytest.mark.parametrize("make", [adjoints.cg, adjoints.minres])
def test_krylov_solvers_report_that_they_were_stopped_early(make):
    v, _, metrics = solve(make(1e-12, max_steps=3), POSITIVE)
    assert metrics["adjoint_steps"] == 3
    left = float(jnp.linalg.norm(POSITIVE @ v - B))
    assert left > 1e-3
    np.testing.assert_allclose(metrics["adjoint_residual"], left, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("H", [POSITIVE, INDEFINITE], ids=["positive", "indefinite"])
def test_minres_has_the_least_residual_in_the_krylov_space(H):
    r = B - H @ V0
    for steps in (1, 3, 6):
        v, _, _ = solve(adjoints.minres(1e-14, max_steps=steps), H)
        krylov = np.stack([np.linalg.matrix_power(np.asarray(H), i) @ r for i in range(steps)], axis=1)
        krylov /= np.linalg.norm(krylov, axis=0)
        best = np.linalg.lstsq(np.asarray(H) @ krylov, np.asarray(r), rcond=None)[0]
        expected = np.linalg.norm(H @ (V0 + krylov @ best) - B)
        np.testing.assert_allclose(np.linalg.norm(H @ v - B), expected, rtol=1e-6)


def test_cg_minimizes_the_energy_over_the_krylov_space():
    r = B - POSITIVE @ V0
    for steps in (2, 6):
        v, _, _ = solve(adjoints.cg(1e-14, max_steps=steps), POSITIVE)
        krylov = np.stack([np.linalg.matrix_power(np.asarray(POSITIVE), i) @ r for i in range(steps)], axis=1)
        krylov = np.linalg.qr(krylov)[0]
        best = np.linalg.solve(krylov.T @ POSITIVE @ krylov, krylov.T @ r)
        np.testing.assert_allclose(v, V0 + krylov @ best, rtol=1e-8)


def test_minres_solves_an_indefinite_system():
    v, _, _ = solve(adjoints.minres(1e-11), INDEFINITE)
    np.testing.assert_allclose(v, np.linalg.solve(INDEFINITE, B), rtol=1e-8)


@pytest.mark.parametrize("make", [adjoints.cg, adjoints.minres])
def test_krylov_solvers_have_nothing_to_do_at_the_solution(make):
    H = 2.0 * jnp.eye(SIZE)
    v, _, metrics = solve(make(1e-6), H, v=B / 2)
    np.testing.assert_array_equal(v, B / 2)
    assert metrics["adjoint_residual"] == 0
    v, _, metrics = solve(make(1e-6), POSITIVE, b=jnp.zeros(SIZE), v=jnp.zeros(SIZE))
    np.testing.assert_array_equal(v, jnp.zeros(SIZE))


def test_cg_survives_many_single_precision_entries():
    """A test for small curvature that is relative to the size of y would answer NaN here, as lineax does."""
    size = 200_000
    h = jnp.linspace(0.1, 1.0, size, dtype=jnp.float32)
    b = jnp.ones(size, jnp.float32)
    inner = Curvature(lambda v: h * v, lambda v: v)
    adjoint = adjoints.cg(1e-3)
    v, _, metrics = jax.jit(lambda: adjoint.solve(inner, b, jnp.zeros_like(b), ()))()
    assert float(jnp.linalg.norm(h * v - b)) <= 1.01e-3 * float(jnp.linalg.norm(b))
    assert metrics["adjoint_residual"] > 0


def test_steps_follow_gradient_descent():
    eta, count = 0.9, 5
    v, _, metrics = solve(adjoints.steps(eta, count), POSITIVE)
    expected = V0
    for _ in range(count):
        before = float(jnp.linalg.norm(POSITIVE @ expected - B))
        expected = expected - eta * (POSITIVE @ expected - B)
    np.testing.assert_allclose(v, expected, rtol=1e-12)
    np.testing.assert_allclose(metrics["adjoint_residual"], before, rtol=1e-12)
    one, _, _ = solve(adjoints.one_step(eta), POSITIVE)
    np.testing.assert_allclose(one, V0 - eta * (POSITIVE @ V0 - B), rtol=1e-12)


def test_neumann_is_the_truncated_series_and_leaves_the_predicted_residual():
    eta, Q = 0.8, 4
    v, _, metrics = solve(adjoints.neumann(eta, Q), POSITIVE)
    factor = np.eye(SIZE) - eta * np.asarray(POSITIVE)
    powers = [np.linalg.matrix_power(factor, i) @ B for i in range(Q + 2)]
    np.testing.assert_allclose(v, eta * sum(powers[: Q + 1]), rtol=1e-12)
    np.testing.assert_allclose(B - POSITIVE @ v, powers[Q + 1], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(metrics["adjoint_residual"], np.linalg.norm(powers[Q]), rtol=1e-12)


def test_quasi_newton_ends_in_as_many_steps_as_there_are_unknowns():
    """BFGS with exact line search on a quadratic, all pairs remembered, takes conjugate directions."""
    v, _, metrics = solve(adjoints.quasi_newton(steps=SIZE, memory=SIZE), POSITIVE)
    np.testing.assert_allclose(v, np.linalg.solve(POSITIVE, B), rtol=1e-7)
    assert metrics["adjoint_residual"] < 1e-8


def test_quasi_newton_reports_its_residual_and_remembers():
    adjoint = adjoints.quasi_newton(steps=3, memory=8)
    v, memory, metrics = solve(adjoint, POSITIVE)
    np.testing.assert_allclose(metrics["adjoint_residual"], jnp.linalg.norm(POSITIVE @ v - B), rtol=1e-10)
    s = jax.vmap(join)(memory.s)
    np.testing.assert_allclose(jax.vmap(join)(memory.z), s @ POSITIVE, rtol=1e-9, atol=1e-14)
    assert np.count_nonzero(memory.weight) == 3

    # A new right-hand side, from the same place: what was learned helps.
    other = jnp.asarray(np.random.default_rng(1).normal(size=SIZE))
    again = jax.jit(lambda memory: adjoint.solve(system(POSITIVE), split(other), split(v), memory))
    _, _, informed = again(memory)
    _, _, naive = again(adjoint.init(split(v)))
    assert informed["adjoint_residual"] < naive["adjoint_residual"]


def test_quasi_newton_stands_still_where_there_is_nothing_to_follow():
    adjoint = adjoints.quasi_newton(steps=2, memory=3)
    exact = jnp.ones(SIZE)
    v, memory, _ = solve(adjoint, jnp.eye(SIZE), b=exact, v=exact)  # already solved
    np.testing.assert_array_equal(v, exact)
    assert not np.any(memory.weight)
    v, memory, _ = solve(adjoint, -jnp.eye(SIZE))  # no positive curvature anywhere
    np.testing.assert_array_equal(v, V0)
    assert not np.any(memory.weight)
