"""Each method's first steps against its recurrence, written out again with dense NumPy matrices."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from implicit_reference import Dense, ridge, series

import bilevel as bl
from bilevel import adjoints, aid, hoag, soba, stocbio
from bilevel.batch import Draws
from bilevel.loop.data.streams import draw
from bilevel.solvers import darts, sama

K, ALPHA, ETA, BETA = 5, 0.5, 0.4, 0.3


def follow(solver, x, y, data=None):
    state = solver.init(x, y, data)
    step = jax.jit(solver.step)
    for _ in range(K):
        state, info = step(state, data)
    return state, info


@pytest.fixture
def case():
    p, dense = ridge()
    return p, dense, jnp.linspace(-0.5, 1.0, 5), jnp.linspace(0.3, -0.3, 5)


@pytest.mark.mathematics("aid")
def test_aid_with_several_steps(case):
    p, dense, x, y = case
    state, _ = follow(
        aid(p.problem, inner=ALPHA, adjoint=adjoints.steps(ETA, 3), outer=BETA, inner_steps=4), x, y, p.data
    )
    v = jnp.zeros(5)
    for _ in range(K):
        for _ in range(4):
            y = y - ALPHA * dense.inner_gradient(x, y)
        (f_x, f_y), H = dense.outer_gradients(x, y), dense.hessian(x, y)
        for _ in range(3):
            v = v - ETA * (H @ v - f_y)
        x = x - BETA * (f_x - dense.cross(x, y) @ v)
    for got, expected in zip((state.x, state.y, state.v), (x, y, v), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.mathematics("soba")
def test_soba_moves_all_three_from_the_same_point(case):
    p, dense, x, y = case
    state, _ = follow(soba(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA), x, y, p.data)
    v = jnp.zeros(5)
    for _ in range(K):
        (f_x, f_y), H, C = dense.outer_gradients(x, y), dense.hessian(x, y), dense.cross(x, y)
        d_y = dense.inner_gradient(x, y)
        x, y, v = x - BETA * (f_x - C @ v), y - ALPHA * d_y, v - ETA * (H @ v - f_y)
    for got, expected in zip((state.x, state.y, state.v), (x, y, v), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.mathematics("darts")
def test_darts_steps_y_before_x(case):
    p, dense, x, y = case
    state, _ = follow(darts(p.problem, inner=ALPHA, outer=BETA, virtual_step=ETA), x, y, p.data)
    for _ in range(K):
        y = y - ALPHA * dense.inner_gradient(x, y)
        ahead = y - ETA * dense.inner_gradient(x, y)
        f_x, f_y = dense.outer_gradients(x, ahead)
        x = x - BETA * (
            f_x - ETA * dense.cross(x, y) @ f_y
        )  # the difference is exact: ∇_x g is quadratic in y
    np.testing.assert_allclose(state.x, x, rtol=1e-11)
    np.testing.assert_allclose(state.y, y, rtol=1e-11)


def cubic():
    """∇_x g = sin(y) + x: its third derivative in y does not vanish, so a difference has an error."""
    f = lambda x, y: 0.5 * jnp.sum(x * x) + jnp.sum(jnp.cos(y + 1.0))
    g = lambda x, y: jnp.sum(y * y) + jnp.sum(x * jnp.sin(y)) + 0.5 * jnp.sum(x * x)
    return bl.Problem(outer=f, inner=g), Dense(lambda x, y, _: f(x, y), lambda x, y, _: g(x, y), (), ())


@pytest.mark.mathematics("darts", "sama")
@pytest.mark.parametrize("name", ["darts", "sama"])
def test_the_difference_s_error_is_the_predicted_multiple_of_epsilon_squared(name):
    """Central difference of sin along v over a displacement ε: −cos(y) v³ h²/6 a coordinate, h = ε/‖v‖."""
    problem, dense = cubic()
    x, y = jnp.array([0.3, -0.4]), jnp.array([0.2, 0.9])
    if name == "darts":
        at = y - ALPHA * jax.grad(problem.inner, 1)(x, y)
        ahead = at - ETA * jax.grad(problem.inner, 1)(x, at)
        f_x, f_y = dense.outer_gradients(x, ahead)
        v = ETA * f_y
        make = lambda epsilon: darts(problem, inner=ALPHA, outer=BETA, virtual_step=ETA, displacement=epsilon)
    else:
        at = y - ALPHA * jax.grad(problem.inner, 1)(x, y)
        f_x, f_y = dense.outer_gradients(x, at)
        v = ALPHA * f_y
        make = lambda epsilon: sama(problem, inner=ALPHA, outer=BETA, displacement=epsilon)
    exact = f_x - dense.cross(x, at) @ v
    for epsilon in (1e-1, 1e-2, 1e-3):
        solver = make(epsilon)
        _, info = solver.step(solver.init(x, y))
        h = epsilon / jnp.linalg.norm(v)
        leading = jnp.cos(at) * v**3 * h**2 / 6  # minus the difference's error, as the term is subtracted
        np.testing.assert_allclose(info.hypergradient - exact, leading, rtol=epsilon**2 / 2 + 1e-4)


@pytest.mark.slow
def test_sama_adapts_to_the_inner_rule(case):
    """v is (∂u/∂∇_y g)ᵀ∇_y f for the rule's own update u, here a dense Jacobian of rmsprop's."""
    p, dense, x, y = case
    rule = optax.rmsprop(1e-2)
    solver = sama(p.problem, inner=rule, outer=BETA)
    state = solver.init(x, y, p.data)
    state, _ = solver.step(state, p.data)  # a memory that is not empty
    after, info = solver.step(state, p.data)

    u = lambda gradient: -rule.update(gradient, state.inner, state.y)[0]
    gradient = jax.grad(p.g, 1)(state.x, state.y, p.train)
    y_hat = state.y - u(gradient)
    f_x, f_y = dense.outer_gradients(state.x, y_hat)
    v = jax.jacobian(u)(gradient).T @ f_y
    np.testing.assert_allclose(after.y, y_hat, rtol=1e-12)
    np.testing.assert_allclose(info.hypergradient, f_x - dense.cross(state.x, y_hat) @ v, rtol=1e-9)


@pytest.mark.mathematics("hoag")
def test_hoag_keeps_to_its_tolerances_and_stops_no_later_than_needed(case):
    p, dense, x, y = case
    tolerance = lambda k: 0.2 * 0.7**k
    solver = hoag(p.problem, inner=1 / p.L, outer=BETA, tol=tolerance)
    state, step = solver.init(x, y, p.data), jax.jit(solver.step)
    counts, scale = [], 0.0
    for k in range(12):
        before = state
        state, info = step(state, p.data)
        epsilon = tolerance(k)
        y, reached = before.y, []
        scale = max(scale, float(jnp.linalg.norm(dense.inner_gradient(before.x, y))))
        while float(jnp.linalg.norm(dense.inner_gradient(before.x, y))) > epsilon * scale:
            y = y - dense.inner_gradient(before.x, y) / p.L
            reached.append(y)
        np.testing.assert_allclose(state.y, y, rtol=1e-10)
        H, (_, f_y) = dense.hessian(before.x, state.y), dense.outer_gradients(before.x, state.y)
        left = float(jnp.linalg.norm(H @ state.v - f_y))
        assert left <= epsilon * float(jnp.linalg.norm(f_y))
        np.testing.assert_allclose(info.metrics["adjoint_residual"], left, rtol=1e-6, atol=1e-14)
        np.testing.assert_allclose(info.metrics["tolerance"], epsilon, rtol=1e-14)
        assert info.metrics["inner_steps"] == len(reached)
        counts.append(len(reached))
    assert 0 < sum(counts[1:]) < 11 * max(counts)  # the tolerance tightens all the time; warm starts keep up


def independent(*batches):
    """The batches as the draws of one step."""
    stack = lambda *leaves: jnp.stack(leaves)
    return Draws(jax.tree.map(stack, *batches), bl.Batch())


@pytest.mark.slow
def test_aid_takes_a_draw_for_each_of_y_v_and_x(case):
    p, dense, x, y = case
    solver = aid(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA, batches="independent")
    assert (solver.draws, aid(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA).draws) == (3, 1)
    slice_of = lambda examples, i: jax.tree.map(lambda a: a[9 * i : 9 * i + 9], examples)
    for_y, for_v, for_x = draw = [bl.Batch(slice_of(p.train, i), slice_of(p.valid, i)) for i in range(3)]
    state, info = follow(solver, x, y, independent(*draw))
    v = jnp.zeros(5)
    for _ in range(K):
        at = x
        d_y = dense.inner_gradient(x, y, for_y.inner)
        y = y - ALPHA * d_y
        v = v - ETA * (dense.hessian(x, y, for_v.inner) @ v - jax.grad(p.f, 1)(x, y, for_v.outer))
        h = jax.grad(p.f, 0)(x, y, for_x.outer) - dense.cross(x, y, for_x.inner) @ v
        x = x - BETA * h
    for got, expected in zip((state.x, state.y, state.v), (x, y, v), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(info.hypergradient, h, rtol=1e-11)
    np.testing.assert_allclose(info.inner_gradient, d_y, rtol=1e-11)
    np.testing.assert_allclose(info.outer_value, p.f(at, y, for_x.outer), rtol=1e-12)


@pytest.mark.mathematics("stocbio")
def test_stocbio_uses_a_draw_for_every_term(case):
    p, dense, x, y = case
    N, Q = 2, 3
    solver = stocbio(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA, products=Q, inner_steps=N)
    assert solver.draws == N + Q + 1
    slice_of = lambda examples, i: jax.tree.map(lambda a: a[9 * i : 9 * i + 9], examples)
    draw = [bl.Batch(slice_of(p.train, i), slice_of(p.valid, i)) for i in range(N + Q + 1)]
    state, info = follow(solver, x, y, independent(*draw))
    for _ in range(K):
        before = x, y
        for t in range(N):
            y = y - ALPHA * dense.inner_gradient(x, y, draw[t].inner)
        f_x, r = jax.grad(p.f, (0, 1))(x, y, draw[N + Q].outer)
        total = r
        for i in range(Q):
            r = r - ETA * dense.hessian(x, y, draw[N + i].inner) @ r
            total = total + r
        x = x - BETA * (f_x - dense.cross(x, y, draw[N + Q].inner) @ (ETA * total))
    np.testing.assert_allclose(state.x, x, rtol=1e-12)
    np.testing.assert_allclose(state.y, y, rtol=1e-12)
    np.testing.assert_allclose(info.inner_gradient, dense.inner_gradient(*before, draw[0].inner), rtol=1e-11)


@pytest.mark.parametrize("batches", ["shared", "independent"])
def test_stocbio_on_one_batch_is_aid_with_the_series(case, batches):
    p, _, x, y = case
    settings = dict(inner_steps=2)
    left, _ = follow(
        stocbio(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA, products=3, batches=batches, **settings),
        x,
        y,
        p.data,
    )
    right, _ = follow(
        aid(p.problem, inner=ALPHA, adjoint=adjoints.neumann(ETA, 3), outer=BETA, **settings), x, y, p.data
    )
    np.testing.assert_allclose(left.x, right.x, rtol=1e-12)
    np.testing.assert_allclose(left.y, right.y, rtol=1e-12)


def test_stocbio_is_unbiased_but_for_the_truncation():
    """The average over every possible draw equals the series with mean curvature, exactly."""
    a, c = np.array([0.5, 1.0, 1.8]), np.array([1.0, -0.4, 0.7])
    inner = lambda x, y, batch: jnp.mean(0.5 * batch[0] * y * y - batch[1] * x * y)
    problem = bl.Problem(outer=lambda x, y: 0.5 * x * x + 0.3 * y, inner=inner)
    kept = 1 - ETA * a.mean()
    unbiased = 0.7 - (-c.mean()) * ETA * (1 + kept + kept**2) * 0.3

    def mean_estimate(batches, draw):
        solver = stocbio(problem, inner=ALPHA, adjoint=ETA, outer=BETA, products=2, batches=batches)

        def estimate(rows):
            state = solver.init(jnp.array(0.7), jnp.array(-0.2), draw(rows))
            return solver.step(state, draw(rows))[1].hypergradient

        every = jnp.array(list(product(range(3), repeat=4)))  # a row for each of the 4 draws
        return np.mean(jax.jit(jax.vmap(estimate))(every))

    example = lambda i: bl.Batch(inner=(jnp.asarray(a)[i], jnp.asarray(c)[i]))
    by_draws = lambda rows: independent(*(example(rows[i]) for i in range(4)))
    np.testing.assert_allclose(mean_estimate("independent", by_draws), unbiased, rtol=1e-13)
    shared = mean_estimate("shared", lambda rows: example(rows[0]))
    assert abs(shared - unbiased) > 5e-3 * abs(unbiased)  # the product of one batch with itself is not


@pytest.mark.slow
def test_stocbio_draws_from_a_stream(case):
    """The mean hypergradient of many steps with minibatches is that of the expectation, at a point held fixed."""
    p, dense, x, y = case
    y, still = y + 0.05, 1e-300  # an entry of y that is 0 would have no noise
    solver = stocbio(p.problem, inner=still, adjoint=ETA, outer=still, products=2)
    stream = bl.iid(p.data, size=8, seed=3)
    _, batch = draw(stream, stream.start(0), solver.draws)
    keep = lambda state, info: info.hypergradient
    start = solver.init(x, y, batch)
    _, seen = jax.jit(lambda: bl.scan(solver, start, stream, steps=20_000, record=keep))()
    expected = dense.estimate(x, series(ETA, 2), y)
    error = jnp.std(seen, axis=0) / np.sqrt(len(seen))
    assert jnp.all(jnp.abs(jnp.mean(seen, axis=0) - expected) < 5 * error)
    assert jnp.linalg.norm(error) < 0.02 * jnp.linalg.norm(expected)


@pytest.mark.slow
def test_soba_costs_about_thirty_percent_less_than_algorithm_1():
    """By XLA's own count of operations on the reweighting task."""
    shape = lambda *dimensions, dtype=jnp.float32: jax.ShapeDtypeStruct(dimensions, dtype)

    def losses(y, images, labels):
        hidden = jax.nn.relu(images @ y["W1"] + y["b1"][None])
        logits = jax.nn.log_softmax(hidden @ y["W2"] + y["b2"][None])
        return -jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]

    problem = bl.Problem(
        outer=lambda x, y, batch: losses(y, *batch).mean(),
        inner=lambda x, y, batch: (jax.nn.sigmoid(x) * losses(y, *batch)).mean(),
    )
    x = shape(2000)
    y = {"W1": shape(784, 256), "b1": shape(256), "W2": shape(256, 10), "b2": shape(10)}
    data = lambda rows: (shape(rows, 784), shape(rows, dtype=jnp.int32))
    batch = bl.Batch(inner=data(2000), outer=data(500))

    def operations(solver):
        state = jax.eval_shape(solver.init, x, y, batch)
        return jax.jit(solver.step).lower(state, batch).compile().cost_analysis()["flops"]

    ratio = operations(soba(problem, inner=5e-2, adjoint=5e-2, outer=1e-3)) / operations(
        aid(problem, inner=5e-2, adjoint=5e-2, outer=1e-3)
    )
    assert 0.6 < ratio < 0.75
