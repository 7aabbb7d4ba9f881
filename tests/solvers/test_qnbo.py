"""qNBO against its recurrence with dense BFGS matrices in NumPy, and at its limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from implicit_reference import ridge

import bilevel as bl

# g = ½yᵀHy + ¼·0.3Σy⁴ − yᵀBx, f = ½‖y − c‖² + 0.05‖x‖², badly enough conditioned for the Hessian to matter.
RNG = np.random.default_rng(7)
U = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
H, B, C = (U * [0.1, 0.5, 1.0, 3.0]) @ U.T, RNG.normal(size=(4, 2)), RNG.normal(size=4)
PROBLEM = bl.Problem(
    inner=lambda x, y: 0.5 * y @ H @ y + 0.075 * jnp.sum(y**4) - y @ (B @ x),
    outer=lambda x, y: 0.5 * jnp.sum((y - C) ** 2) + 0.05 * jnp.sum(x**2),
)
X0, Y0, ALPHA, BETA = np.array([1.0, -0.5]), np.zeros(4), 0.2, 0.1


def inverse(pairs):
    """The BFGS matrix of the pairs, oldest first, from the newest one's multiple of the identity."""
    s, z = pairs[-1]
    matrix = (s @ z) / (z @ z) * np.eye(4)
    for s, z in pairs:
        left = np.eye(4) - np.outer(s, z) / (s @ z)
        matrix = left @ matrix @ left.T + np.outer(s, s) / (s @ z)
    return matrix


def recurrence(steps, P, T, Q, memory):
    """(x, y, v) after `steps` outer steps, and how many quasi-Newton steps on y were not taken."""
    gradient = lambda x, y: H @ y + 0.3 * y**3 - B @ x
    x, y, v, pairs, refused = X0, Y0, np.zeros(4), [], 0
    for _ in range(steps):
        for t in range(P + T):
            p = gradient(x, y)
            to = y - ALPHA * p if t < P else y - inverse(pairs[-memory:]) @ p
            after = gradient(x, to)
            pairs.append((to - y, after - p))
            taken = t < P or np.linalg.norm(after) <= np.linalg.norm(p)
            y, refused = (to if taken else y), refused + (not taken)
        hessian, b = H + 0.9 * np.diag(y**2), y - C
        for _ in range(Q):
            r = hessian @ v - b
            d = inverse(pairs[-memory:]) @ r
            s = -(r @ d) / (d @ hessian @ d) * d
            v = v + s
            pairs.append((s, hessian @ s))
        x = x - BETA * (0.1 * x + B.T @ v)
    return x, y, v, refused


@pytest.mark.mathematics("qnbo")
@pytest.mark.parametrize(("P", "T", "Q", "memory"), [(1, 3, 2, 6), (2, 1, 1, 40)])
def test_the_recurrence_with_dense_matrices(P, T, Q, memory):
    solver = bl.solvers.qnbo(
        PROBLEM, inner=ALPHA, outer=BETA, gradient_steps=P, inner_steps=T, adjoint_steps=Q, memory=memory
    )
    state, _ = jax.jit(lambda: bl.scan(solver, solver.init(X0, Y0), steps=6))()
    x, y, v, refused = recurrence(6, P, T, Q, memory)
    for ours, theirs in ((state.x, x), (state.y, y), (state.v, v)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)
    assert refused > 0 or T == 1  # the safeguard had something to do


def test_with_few_pairs_the_limit_is_the_exact_one():
    p, dense = ridge()
    solver = bl.solvers.qnbo(p.problem, inner=1 / p.L, outer=0.5, inner_steps=2, memory=2)
    result = bl.run(solver, jnp.full(5, 0.3), jnp.zeros(5), data=p.data, steps=1500)
    assert jnp.linalg.norm(dense.hypergradient(result.x)) < 1e-12
    np.testing.assert_allclose(result.y, dense.inner_solution(result.x), rtol=1e-9)
    v = jnp.linalg.solve(dense.hessian(result.x, result.y), dense.outer_gradients(result.x, result.y)[1])
    np.testing.assert_allclose(result.state.v, v, rtol=1e-9)


def test_at_condition_number_ten_thousand_it_solves_both_systems_where_gradient_steps_do_not():
    """x held fixed; a gradient of g for each of the steps on y."""
    n, rng = 10, np.random.default_rng(1)
    U = np.linalg.qr(rng.normal(size=(n, n)))[0]
    H, c = (U * np.geomspace(1e-4, 1.0, n)) @ U.T, rng.normal(size=n)
    problem = bl.Problem(inner=lambda x, y: 0.5 * (y - x) @ H @ (y - x), outer=lambda x, y: c @ y)
    x = rng.normal(size=n)

    def errors(solver):
        state, _ = jax.jit(lambda: bl.scan(solver, solver.init(x, np.zeros(n)), steps=40))()
        far = lambda a, b: np.linalg.norm(a - b) / np.linalg.norm(b)
        return far(state.y, x), far(state.v, np.linalg.solve(H, c))

    y, v = errors(bl.solvers.qnbo(problem, inner=1.0, outer=1e-30, inner_steps=3, memory=20))
    assert max(y, v) < 1e-4
    assert (
        min(errors(bl.aid(problem, inner=1.0, adjoint=bl.adjoints.steps(1.0, 2), outer=1e-30, inner_steps=5)))
        > 0.1
    )


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize("name", ["gradient_steps", "inner_steps", "adjoint_steps", "memory"])
@pytest.mark.parametrize("value", [0, 1.5])
def test_counts_must_be_whole_and_positive(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1, not {value}"):
        bl.solvers.qnbo(PROBLEM, inner=0.1, outer=0.1, **{name: value})
