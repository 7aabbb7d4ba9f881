"""Damping, Gauss–Newton and Nyström against dense matrices, and what they cost."""

import inspect
import pickle
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import bilevel as bl
from bilevel import adjoints
from bilevel.counting import Counts
from bilevel.identity import described
from bilevel.oracles import Curvature

RNG = np.random.default_rng(0)
SIZE = 40
BASIS = np.linalg.qr(RNG.normal(size=(SIZE, SIZE)))[0]
B = jnp.asarray(RNG.normal(size=SIZE))


def symmetric(values, dtype=float):
    return jnp.asarray(BASIS * values @ BASIS.T, dtype)


def split(v):
    return {"a": v[:15], "b": v[15:].reshape(5, 5)}


def join(tree):
    return jnp.concatenate([tree["a"], tree["b"].ravel()])


@jax.jit
def program(adjoint, H, b, v):
    inner = Curvature(lambda v: split(H @ join(v)), lambda v: v)
    v, _, metrics = adjoint.solve(inner, split(b), split(v), adjoint.init(split(v)))
    return join(v), metrics


def solve(adjoint, H, b=B, v=None):
    return program(adjoint, H, b, jnp.zeros_like(b) if v is None else v)


# Damping

CONVEX = symmetric(np.geomspace(0.05, 1.0, SIZE))
DELTA = 0.02


@pytest.mark.parametrize("make", [adjoints.cg, adjoints.minres])
def test_damping_solves_the_damped_system_within_its_stated_bias(make):
    v, metrics = solve(adjoints.damped(make(1e-12), DELTA), CONVEX)
    np.testing.assert_allclose(v, np.linalg.solve(CONVEX + DELTA * np.eye(SIZE), B), rtol=1e-8)
    assert metrics["adjoint_residual"] < 1e-10  # of the damped system
    exact = np.linalg.solve(CONVEX, B)
    bound = DELTA / (0.05 + DELTA) * np.linalg.norm(exact)
    assert 0.1 * bound < np.linalg.norm(v - exact) <= bound
    softest = BASIS[:, 0]  # where the bound is met
    v, _ = solve(adjoints.damped(make(1e-12), DELTA), CONVEX, b=jnp.asarray(softest))
    np.testing.assert_allclose(
        softest / 0.05 - v, DELTA / (0.05 + DELTA) * softest / 0.05, rtol=1e-7, atol=1e-9
    )


ALL = {
    "float": 0.9,
    "optax": optax.sgd(0.5, momentum=0.5),
    "neumann": adjoints.neumann(0.9, 3),
    "minres": adjoints.minres(1e-3, max_steps=3),
    "quasi_newton": adjoints.quasi_newton(2, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", ALL.values(), ids=ALL)
def test_damping_any_adjoint_is_that_adjoint_on_the_damped_matrix(adjoint):
    plain = adjoint if isinstance(adjoint, bl.Adjoint) else adjoints.one_step(adjoint)
    got, said = solve(adjoints.damped(adjoint, DELTA), CONVEX, v=B)
    expected, told = solve(plain, CONVEX + DELTA * jnp.eye(SIZE), v=B)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    assert said.keys() == told.keys()
    assert not np.allclose(got, solve(plain, CONVEX, v=B)[0], rtol=1e-6)


def test_a_damped_step_no_longer_grows_where_the_curvature_is_negative():
    H = symmetric(np.linspace(-0.1, 1.0, SIZE))
    grow = lambda adjoint: solve(adjoint, H)[0]
    plain, tamed = grow(adjoints.steps(0.9, 400)), grow(adjoints.damped(adjoints.steps(0.9, 400), 0.2))
    assert jnp.linalg.norm(plain) > 1e10
    np.testing.assert_allclose(tamed, np.linalg.solve(H + 0.2 * np.eye(SIZE), B), rtol=1e-6)


def test_stocbio_s_damping_is_that_of_the_series():
    q = bl.problems.ridge_logistic(train=64, valid=56)
    state = lambda solver: jax.jit(
        lambda: bl.scan(solver, solver.init(jnp.full(5, 0.3), jnp.zeros(5), q.data), q.data, steps=3)[0].x
    )()
    series = adjoints.damped(adjoints.neumann(0.5 / q.L, 3), 0.1)
    damped = bl.stocbio(q.problem, inner=1 / q.L, adjoint=0.5 / q.L, outer=0.1, batches="shared", damping=0.1)
    np.testing.assert_allclose(
        state(damped), state(bl.aid(q.problem, inner=1 / q.L, adjoint=series, outer=0.1)), rtol=1e-12
    )


# Gauss–Newton


def layer(rng, rows, columns):
    return jnp.asarray(rng.normal(size=(rows, columns)) / np.sqrt(rows))


def model(x, y, batch):
    hidden = batch["a"]
    for W in y[:-1]:
        hidden = jnp.tanh(hidden @ W)
    return hidden @ y[-1] * x["scale"]


def loss(x, scores, batch):
    """Weighted cross-entropy, convex in the scores."""
    picked = jnp.take_along_axis(scores, batch["c"][:, None], axis=1)[:, 0]
    each = jax.nn.logsumexp(scores, axis=1) - picked
    return jnp.mean(jax.nn.sigmoid(x["weights"]) * each), {"worst": jnp.max(each)}


def ridge(x, y):
    return 0.5 * x["ridge"] * sum(jnp.sum(W * W) for W in y) + 0.01 * jnp.sum(y[-1] ** 4)


def written_out(x, y, batch):
    value, metrics = loss(x, model(x, y, batch), batch)
    return value + ridge(x, y), metrics


@cache
def network():
    rng = np.random.default_rng(1)
    batch = {"a": jnp.asarray(rng.normal(size=(16, 3))), "c": jnp.asarray(rng.integers(0, 3, 16))}
    x = {"scale": jnp.array(1.5), "weights": jnp.asarray(rng.normal(size=16)), "ridge": jnp.array(1e-2)}
    y = [layer(rng, 3, 4), layer(rng, 4, 3)]
    return x, y, bl.Batch(inner=batch, outer=batch)


def outer(x, y, batch):
    return loss(x | {"weights": jnp.zeros(16)}, model(x, y, batch), batch)[0]


PROBLEM = bl.Problem(inner=bl.composed(model, loss, ridge), outer=outer)


def test_a_composed_objective_is_the_one_written_out():
    x, y, data = network()

    @jax.jit
    def evaluated(x, y, data):
        out = []
        for inner in (PROBLEM.inner, written_out):
            problem = bl.Problem(inner=inner, outer=outer)
            at, v = problem.oracles.linearize(x, y, data), jax.tree.map(jnp.ones_like, y)
            offered = problem.oracles.curvature(x, y, data).gauss_newton
            assert (offered is None) == (inner is written_out)
            out.append((tuple(problem.g.evaluate(x, y, data)), at.gradient, at.hessian(v), at.cross(v)))
        return out

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15), *evaluated(x, y, data)
    )


def test_a_composed_objective_survives_pickling_and_says_what_it_is_made_of():
    again = pickle.loads(pickle.dumps(PROBLEM)).inner
    assert inspect.signature(again) == inspect.signature(PROBLEM.inner)
    assert str(inspect.signature(again)) == "(x, y, batch)"
    assert [f"{name}#" in described(again) for name in ("model", "loss", "ridge")] == [True] * 3
    assert described(again) == described(PROBLEM.inner)


class Product(bl.Adjoint):
    """v ↦ H·v, to see which curvature an adjoint is given."""

    def solve(self, inner, b, v, memory):
        return inner.hessian(v), memory, {}


def test_gauss_newton_is_the_dense_one_and_positive_definite_where_the_hessian_is_not():
    x, y, data = network()
    flat, unravel = ravel_pytree(y)
    damped, gauss_newton, cg = adjoints.damped, adjoints.gauss_newton, adjoints.cg(1e-12)

    @jax.jit
    def dense(x, flat, data):
        predict = lambda flat: model(x, unravel(flat), data.inner).ravel()
        of_scores = lambda scores: loss(x, scores.reshape(16, 3), data.inner)[0]
        J, curvature = jax.jacfwd(predict)(flat), jax.hessian(of_scores)(predict(flat))
        expected = J.T @ curvature @ J + jax.hessian(lambda f: ridge(x, unravel(f)))(flat)
        at = PROBLEM.oracles.curvature(x, unravel(flat), data)
        given = lambda adjoint: lambda v: ravel_pytree(adjoint.solve(at, y, unravel(v), ())[0])[0]
        seen = [
            gauss_newton(Product()),
            damped(gauss_newton(Product()), 0.3),
            gauss_newton(damped(Product(), 0.3)),
        ]
        b = jax.grad(outer, 1)(x, unravel(flat), data.outer)
        v, _, metrics = gauss_newton(cg).solve(at, b, y, ())
        matrices = [jax.vmap(given(adjoint))(jnp.eye(flat.size)) for adjoint in [Product(), *seen]]
        return expected, matrices, ravel_pytree(b)[0], ravel_pytree(v)[0], metrics["adjoint_residual"]

    expected, (H, G, *both), b, v, left = dense(x, flat, data)
    np.testing.assert_allclose(G, expected, rtol=1e-10, atol=1e-13)
    for one in both:
        np.testing.assert_allclose(one, G + 0.3 * np.eye(len(G)), rtol=1e-12, atol=1e-13)
    assert np.linalg.eigvalsh(G)[0] >= 1e-2 * (1 - 1e-9)  # the ridge
    assert np.linalg.eigvalsh(H)[0] < -1e-3

    # CG on G, which it could not do on H; with the error that the docstring states.
    np.testing.assert_allclose(v, np.linalg.solve(G, b), rtol=1e-8)
    exact = np.linalg.solve(H, b)
    np.testing.assert_allclose(v - exact, np.linalg.solve(G, (H - G) @ exact), rtol=1e-6, atol=1e-9)
    assert left < 1e-10


def test_gauss_newton_is_the_hessian_where_the_model_is_linear():
    a, x = jnp.asarray(RNG.normal(size=(20, 5))), jnp.full(5, 0.1)
    squares = lambda x, p: jnp.mean(jnp.logaddexp(0.0, p))
    linear = bl.composed(lambda x, y: a @ y, squares, lambda x, y: x @ y**2)
    at = bl.Problem(inner=linear, outer=lambda x, y: x @ y).oracles.curvature
    both = jax.jit(lambda v: (at(x, x).hessian(v), at(x, x).gauss_newton()(v)))
    np.testing.assert_allclose(*both(jnp.arange(5.0)), rtol=1e-12)


def test_a_model_s_state_keys_and_rows_reach_its_parts():
    def predict(x, y, batch, *, key, state):
        noise = 0.1 * jax.random.normal(key, batch.shape[:1])
        return batch @ y + noise + state, state + 1

    def weighted(x, p, batch, *, rows=None):
        return jnp.mean((x if rows is None else x[rows]) * p**2), {"mean": jnp.mean(p)}

    problem = bl.Problem(inner=bl.composed(predict, weighted), outer=lambda x, y: x @ x + y @ y)
    assert (problem.g.batch, problem.g.extras, problem.g.needs) == (
        "required",
        {"key", "rows", "state"},
        {"key", "state"},
    )
    solver = bl.aid(problem, inner=0.1, adjoint=adjoints.damped(adjoints.gauss_newton(0.1), 0.1), outer=0.1)
    x0, y0, a = jnp.ones(8), jnp.ones(2), jnp.asarray(RNG.normal(size=(8, 2)))
    data = bl.epochs(bl.Batch(inner=a), bl.Levels(inner=4, outer=None), seed=0)
    result = bl.run(solver, x0, y0, data=data, steps=3, model_state=jnp.zeros(()), seed=0)
    assert result.run.model == 3
    assert result.trace["inner/mean"].shape == (3,)
    assert np.all(np.isfinite(result.x))
    assert np.any(result.x != 1)


def operations(function, *at) -> float:
    return jax.jit(function).lower(*at).compile().cost_analysis()["flops"]


def test_gauss_newton_costs_less_than_the_hessian_in_operations_and_counts_as_its_product():
    """Four layers of one width. A product multiplies by a layer 4 times, the Hessian's 6 times; by the first, twice."""
    real = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float64)
    x = {"scale": real(), "weights": real(256), "ridge": real()}
    y = [real(64, 64) for _ in range(4)]
    batch = bl.Batch(inner={"a": real(256, 64), "c": jax.ShapeDtypeStruct((256,), jnp.int64)})
    at = lambda x, y, batch: PROBLEM.oracles.curvature(x, y, batch)
    once = lambda product: lambda x, y, v, batch: product(at(x, y, batch))(v)
    twice = lambda product: lambda x, y, v, batch: (lambda G: G(G(v)))(product(at(x, y, batch)))
    one = {
        name: operations(twice(product), x, y, y, batch) - operations(once(product), x, y, y, batch)
        for name, product in {"H": lambda at: at.hessian, "G": lambda at: at.gauss_newton()}.items()
    }
    assert one["G"] / one["H"] == pytest.approx((3 * 4 + 2) / (3 * 6 + 2), abs=0.01)

    x, y, data = network()
    solver = bl.aid(PROBLEM, inner=0.1, adjoint=adjoints.gauss_newton(adjoints.steps(0.1, 3)), outer=0.1)
    counts = bl.oracle_calls(solver, solver.init(x, y, data), data, steps=2)
    assert counts == Counts(4, 2, 6, 2)


# Nyström

RANK = 10


def woodbury(H, b, rho):
    """As in the authors' `hypergrad` (approx_hypergrad.py, `nystrom`): rows C of H, and M = C[:, indices]."""
    indices = np.asarray(jax.random.permutation(jax.random.key(0), SIZE)[:RANK])
    C, b, rho = np.asarray(H)[indices], np.asarray(b), b.dtype.type(rho)
    return b / rho - C.T @ np.linalg.solve(C[:, indices] + C @ C.T / rho, C @ b) / rho**2


def test_nystrom_by_columns_is_the_published_formula():
    v, metrics = solve(adjoints.nystrom(RANK, 0.3, sketch="columns"), CONVEX)
    np.testing.assert_allclose(v, woodbury(CONVEX, B, 0.3), rtol=1e-9)
    np.testing.assert_allclose(metrics["adjoint_residual"], jnp.linalg.norm(CONVEX @ v - B), rtol=1e-10)


def low(rank):
    return np.where(np.arange(SIZE) < rank, np.geomspace(10, 0.001, SIZE), 0)


@pytest.mark.parametrize("sketch", ["dense", "columns"])
def test_nystrom_is_exact_for_as_many_eigenvalues_as_its_rank(sketch):
    for rank in (RANK, RANK - 3):  # with fewer, the sketch is singular
        H = symmetric(low(rank))
        v, _ = solve(adjoints.nystrom(RANK, DELTA, sketch=sketch), H)
        np.testing.assert_allclose(v, np.linalg.solve(H + DELTA * np.eye(SIZE), B), rtol=1e-6)


def test_more_products_than_unknowns_are_not_taken():
    v, _ = solve(adjoints.nystrom(10 * SIZE, DELTA), CONVEX)
    np.testing.assert_allclose(v, np.linalg.solve(CONVEX + DELTA * np.eye(SIZE), B), rtol=1e-6)


def test_nystrom_s_error_is_within_its_bound_and_v_within_b_over_delta():
    decaying = symmetric(np.geomspace(10, 1e-3, SIZE))
    exact = np.linalg.solve(decaying + DELTA * np.eye(SIZE), B)
    omega = np.asarray(jax.random.uniform(jax.random.key(0), (RANK, SIZE), minval=-1)).T
    Y = decaying @ omega
    E = np.linalg.norm(decaying - Y @ np.linalg.solve(omega.T @ Y, Y.T), 2)
    v, _ = solve(adjoints.nystrom(RANK, DELTA), decaying)
    assert 0 < np.linalg.norm(v - exact) <= E / (E + DELTA) * np.linalg.norm(B) / DELTA
    for H in (symmetric(np.linspace(-1, 1, SIZE)), jnp.zeros((SIZE, SIZE))):  # whatever the curvature
        v, _ = solve(adjoints.nystrom(RANK, DELTA), H)
        assert np.linalg.norm(v) <= np.linalg.norm(B) / DELTA * (1 + 1e-9)


def test_nystrom_keeps_digits_in_single_precision_that_woodbury_loses():
    """λ/δ = 1e4, and two terms of size 1/δ in the published form."""
    delta, exact, single, b = (
        1e-3,
        symmetric(low(RANK)),
        symmetric(low(RANK), jnp.float32),
        B.astype(jnp.float32),
    )
    with jax.default_matmul_precision("highest"):  # of the objective's own products, on accelerators
        v, _ = solve(adjoints.nystrom(RANK, delta, sketch="columns"), single, b=b)
    left = lambda v: (
        np.linalg.norm((exact + delta * np.eye(SIZE)) @ np.asarray(v, float) - B) / np.linalg.norm(B)
    )
    assert left(v) < 2e-3
    assert left(v) < 0.2 * left(woodbury(single, b, delta))


OUTLIERS = np.concatenate([np.geomspace(1e4, 1e2, 8), np.linspace(0.9, 1.1, SIZE - 8)])
BOTH_SIGNS = OUTLIERS * np.where(np.arange(SIZE) % 2, -1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "values"),
    [(adjoints.cg, OUTLIERS), (adjoints.minres, OUTLIERS), (adjoints.minres, BOTH_SIGNS)],
    ids=["cg", "minres", "minres, indefinite"],
)
def test_a_preconditioner_saves_the_steps_that_outliers_cost_and_leaves_no_bias(make, values):
    H = symmetric(values)
    _, without = solve(make(1e-8), H)
    v, said = solve(make(1e-8, preconditioner=adjoints.nystrom(RANK, 1.0)), H)
    np.testing.assert_allclose(v, np.linalg.solve(H, B), rtol=1e-5)
    left = float(jnp.linalg.norm(H @ v - B))
    assert left <= 1e-8 * jnp.linalg.norm(B) * (1 + 1e-3)
    np.testing.assert_allclose(said["adjoint_residual"], left, rtol=1e-2)
    assert said["adjoint_steps"] + 10 < without["adjoint_steps"]  # the rank's products are earned back


def test_preconditioned_minres_has_the_least_residual_in_its_norm():
    H, damping = np.asarray(symmetric(BOTH_SIGNS)), 1.0
    nystrom = adjoints.nystrom(RANK, damping)
    inner = Curvature(lambda v: H @ v, lambda v: v)
    P = np.asarray(jax.jit(lambda eye: jax.vmap(nystrom.inverse(inner, B))(eye))(jnp.eye(SIZE)))
    np.testing.assert_allclose(P, P.T, atol=1e-12)
    assert np.linalg.eigvalsh(P)[0] > 0
    root = np.linalg.cholesky(P).T  # √(rᵀPr) = ‖root·r‖
    steps = 3
    v, _ = solve(adjoints.minres(1e-14, max_steps=steps, preconditioner=nystrom), jnp.asarray(H))
    krylov = np.stack([np.linalg.matrix_power(P @ H, i) @ P @ B for i in range(steps)], axis=1)
    krylov /= np.linalg.norm(krylov, axis=0)
    best = np.linalg.lstsq(root @ H @ krylov, root @ B, rcond=None)[0]
    expected = np.linalg.norm(root @ (H @ krylov @ best - B))
    np.testing.assert_allclose(np.linalg.norm(root @ (H @ v - B)), expected, rtol=1e-6)


# Refusals


@pytest.mark.usefixtures("as_users_see_it")
def test_refusals_name_the_value_and_the_fix():
    q = bl.problems.quadratic()
    refused = [
        (lambda: adjoints.damped(0.1, 0.0), ValueError, "damping must be a positive number, not 0.0"),
        (
            lambda: adjoints.damped(-0.1, 0.1),
            ValueError,
            "adjoint step size must be a positive number, not -0.1",
        ),
        (
            lambda: adjoints.gauss_newton("cg"),
            ValueError,
            "adjoint step size must be a positive number, not 'cg'",
        ),
        (lambda: adjoints.nystrom(0, 0.1), ValueError, "rank must be a whole number of at least 1, not 0"),
        (lambda: adjoints.nystrom(3, -1.0), ValueError, "damping must be a positive number, not -1.0"),
        (
            lambda: adjoints.nystrom(3, 1.0, sketch="rows"),
            ValueError,
            '"dense" or "columns", not \'rows\'',
        ),
        (lambda: adjoints.nystrom(3, 1.0, seed=-1), ValueError, "seed must be a whole number.*not -1"),
        (lambda: adjoints.cg(preconditioner=0.1), TypeError, "nystrom.*or None, not 0.1"),
        (lambda: adjoints.minres(preconditioner=3), TypeError, "nystrom.*or None, not 3"),
        (
            lambda: bl.stocbio(q.problem, inner=0.1, adjoint=0.1, outer=0.1, damping=-1.0),
            ValueError,
            "damping must be.*not -1.0",
        ),
        (lambda: bl.composed(3.0, loss), TypeError, "the model of the composed objective must be a function"),
        (lambda: bl.composed(model, lambda p: p), TypeError, "the loss of the composed objective must take"),
        (
            lambda: bl.composed(model, lambda x, p, *, state: p),
            TypeError,
            "asks for `state`, which belongs to",
        ),
    ]
    for build, error, words in refused:
        with pytest.raises(error, match=words):
            build()


def test_gauss_newton_refuses_an_objective_that_is_not_composed_before_any_work():
    computed = []

    def g(x, y):
        jax.debug.callback(lambda: computed.append(1))
        return jnp.sum((y - x) ** 2)

    problem = bl.Problem(inner=g, outer=lambda x, y: jnp.sum(y))
    with pytest.raises(TypeError, match=r"write it as bl\.composed\(model, loss\)"):
        bl.run(
            bl.aid(problem, inner=0.1, adjoint=adjoints.gauss_newton(0.1), outer=0.1),
            jnp.ones(2),
            jnp.ones(2),
            steps=3,
        )
    jax.effects_barrier()
    assert computed == []


def test_a_stateful_model_must_return_its_state():
    problem = bl.Problem(
        inner=bl.composed(lambda x, y, *, state: y, lambda x, p: p @ p), outer=lambda x, y: x @ y
    )
    solver = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1)
    with pytest.raises(TypeError, match=r"must return \(predictions, state\)"):
        bl.run(solver, jnp.ones(2), jnp.ones(2), steps=1, model_state=jnp.zeros(()))
