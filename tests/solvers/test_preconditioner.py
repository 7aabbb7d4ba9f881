"""AdamW with its preconditioner held fixed in the adjoint system."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel import adjoints
from bilevel.solvers.fixed_points import adjoint_system, fixed_point, residual
from bilevel.solvers.rules import as_rule

N, C, EPS = 5, 0.1, 0.05
RNG = np.random.default_rng(3)
A, B = jnp.asarray(RNG.normal(size=(20, N))), jnp.asarray(RNG.normal(size=20))
V, W = jnp.asarray(RNG.normal(size=(20, N))), jnp.asarray(RNG.normal(size=20))
X, Y = jnp.linspace(-2.0, -1.0, N), jnp.linspace(-1.0, 1.0, N)


@pytest.fixture(autouse=True)
def optax_promotes():
    with jax.numpy_dtype_promotion("standard"):
        yield


def g(x, y):
    return 0.5 * jnp.mean((A @ y - B) ** 2) + 0.5 * jnp.sum(jnp.exp(x) * y * y)


def f(x, y):
    return 0.5 * jnp.mean((V @ y - W) ** 2)


PROBLEM = bl.Problem(inner=g, outer=f)


def after(tx, steps, scale=1.0):
    """y and the memory after steps on random gradients, by optax itself."""
    memory, y = tx.init(Y), Y
    for i in range(steps):
        gradient = scale * jnp.asarray(np.random.default_rng(i).normal(size=N))
        updates, memory = tx.update(gradient, memory, y)
        y = optax.apply_updates(y, updates)
    return y, memory


def diagonal(tx, y, memory):
    rule = as_rule(bl.fixed_preconditioner(tx), "inner")
    here, b = PROBLEM.oracles.curvature(X, y, None), PROBLEM.oracles.outer_gradients(X, y, None).y
    system = adjoint_system(PROBLEM, rule, memory, X, y, here, b, None)
    left = residual(PROBLEM, rule, memory, y, jnp.zeros(N))  # (c/P)y, where ∇_y g is zero
    return jax.jacobian(system.inner.hessian)(jnp.zeros(N)) - jax.hessian(g, 1)(X, y), left


def expected(nu, steps, b2=0.999, eps=1e-8, c=C):
    """c(√v̂ + ε), with a step without a gradient ahead."""
    return c * (np.sqrt(b2 * np.asarray(nu) / (1 - b2 ** (steps + 1))) + eps)


warm_up = optax.warmup_cosine_decay_schedule(0.0, 0.01, 5, 50)
KINDS = {
    "constant": lambda: optax.adamw(1e-3, weight_decay=C),
    "tiny rate": lambda: optax.adamw(1e-9, weight_decay=C),
    "warm-up and cosine": lambda: optax.adamw(warm_up, weight_decay=C),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(100.0), optax.adamw(1e-3, weight_decay=C)),
    "nesterov": lambda: optax.adamw(1e-3, weight_decay=C, nesterov=True),
    "injected": lambda: optax.inject_hyperparams(optax.adamw)(1e-3, weight_decay=C),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_diagonal_is_that_of_the_formula(kind):
    tx, steps = KINDS[kind](), 150  # the last hundred of the schedule have the rate 0
    y, memory = after(tx, steps)
    nu = optax.tree.get(memory, "nu")
    shift, left = diagonal(tx, y, memory)
    bias = 1 - 0.9 ** (steps + 1)  # of the first moment, which has settled
    np.testing.assert_allclose(shift, np.diag(bias * expected(nu, steps)), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(left, np.diag(shift) * y, rtol=1e-12)


@pytest.mark.slow
def test_a_mask_of_the_decay_and_frozen_parts():
    arrays = lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 0, tree)
    rules: Any = {"train": optax.adamw(1e-3, weight_decay=C, mask=arrays), "keep": optax.set_to_zero()}
    tx = optax.multi_transform(rules, {"w": "train", "b": "train", "k": "keep"})
    y = {"w": jnp.ones(2), "b": jnp.zeros(()), "k": jnp.ones(3)}
    found = fixed_point(PROBLEM, as_rule(bl.fixed_preconditioner(tx), "inner"), y)
    assert found.active == {"w": True, "b": True, "k": False}
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * sum(jnp.sum((a - x) ** 2) for a in y.values()),
        outer=lambda x, y: sum(jnp.sum(a) for a in y.values()),
    )
    solver = bl.aid(problem, inner=bl.fixed_preconditioner(tx), adjoint=adjoints.cg(1e-12), outer=1e-9)
    state = solver.init(jnp.ones(()), y)
    for _ in range(3):
        state, _ = solver.step(state)
    nu = optax.tree.get(state.inner, "nu", filtering=lambda path, _: "train" in str(path))
    c = expected(nu["w"], 3)
    np.testing.assert_allclose(state.v["w"], 1 / (1 + (1 - 0.9**4) * c), rtol=1e-6)  # (1 + c/P)v = 1
    np.testing.assert_allclose(state.v["b"], 1.0, rtol=1e-12)
    np.testing.assert_array_equal(state.v["k"], 0.0)


@pytest.mark.slow
def test_the_error_is_the_share_that_the_decay_takes_of_a_sign():
    """On full batches AdamW rests where |∇g| = εc|y|/(1 − c|y|): the exact shift is the held one over 1 − c|y|."""
    tx = optax.adamw(1e-2, weight_decay=C, eps=EPS)

    def rest(x):
        def step(carry, _):
            y, memory = carry
            updates, memory = tx.update(jax.grad(g, 1)(x, y), memory, y)
            return (optax.apply_updates(y, updates), memory), None

        return jax.lax.scan(step, (Y, tx.init(Y)), length=20_000)[0]

    def difference(e, h=1e-4):
        return (f(X, rest(X + h * e)[0]) - f(X, rest(X - h * e)[0])) / (2 * h)

    exact = jax.jit(jax.vmap(difference))(jnp.eye(N))
    y, memory = jax.jit(rest)(X)

    def hypergradient(rule):
        solver = bl.aid(PROBLEM, inner=rule, adjoint=adjoints.cg(1e-12), outer=1e-12)
        return solver.step(solver.init(X, y)._replace(inner=memory))[1]

    info = hypergradient(bl.fixed_preconditioner(tx))
    np.testing.assert_allclose(info.inner_gradient, 0.0, atol=1e-7)  # at rest, and Info says so
    far = lambda h: jnp.linalg.norm(h - exact) / jnp.linalg.norm(exact)
    held, shift = far(info.hypergradient), np.diag(diagonal(tx, y, memory)[0])
    K = jax.hessian(g, 1)(X, y) + jnp.diag(shift / (1 - C * jnp.abs(y)))
    cross = jax.jacobian(jax.grad(g, 1))(X, y)
    assert far(-cross.T @ jnp.linalg.solve(K, jax.grad(f, 1)(X, y))) < 1e-5  # the derivation holds
    assert held < 0.02
    H = jax.hessian(g, 1)(X, y)
    assert held < 0.5 * far(-cross.T @ jnp.linalg.solve(H, jax.grad(f, 1)(X, y)))  # without the decay


METHODS = {
    "aid": lambda rule: bl.aid(PROBLEM, inner=rule, adjoint=0.1, outer=0.01),
    "soba": lambda rule: bl.soba(PROBLEM, inner=rule, adjoint=0.1, outer=0.01),
    "hoag": lambda rule: bl.hoag(PROBLEM, inner=rule, outer=0.01),
    "stocbio": lambda rule: bl.stocbio(
        PROBLEM, inner=rule, adjoint=0.1, outer=0.01, products=3, batches="shared"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_runs_resume_bit_for_bit(method):
    solver = METHODS[method](bl.fixed_preconditioner(optax.adamw(warm_up, weight_decay=C)))
    whole = bl.run(solver, X, Y, steps=6)
    half = bl.run(solver, X, Y, steps=3)
    rest = bl.run(solver, steps=3, resume=half)
    assert np.all(np.isfinite(whole.x))
    np.testing.assert_array_equal(rest.x, whole.x)
    np.testing.assert_array_equal(rest.y, whole.y)


@pytest.mark.slow
def test_a_sweep_over_the_decay_agrees_with_runs():
    rule = lambda c: bl.fixed_preconditioner(optax.inject_hyperparams(optax.adamw)(1e-2, weight_decay=c))
    solvers = [bl.aid(PROBLEM, inner=rule(c), adjoint=0.1, outer=0.01) for c in (0.1, 0.5)]
    swept = bl.sweep(solvers, X, Y, steps=5)
    for i, solver in enumerate(solvers):
        np.testing.assert_allclose(swept[i].x, bl.run(solver, X, Y, steps=5).x, rtol=1e-9)


@pytest.mark.slow
def test_around_rules_that_need_no_holding_nothing_changes():
    for tx in (optax.adam(1e-2), optax.chain(optax.add_decayed_weights(0.1), optax.adam(1e-2))):
        bare, wrapped = (
            bl.run(METHODS["aid"](rule), X, Y, steps=4).x for rule in (tx, bl.fixed_preconditioner(tx))
        )
        np.testing.assert_array_equal(bare, wrapped)
    once = bl.fixed_preconditioner(optax.adamw(1e-3))
    assert bl.fixed_preconditioner(once) is once


@pytest.mark.slow
def test_projected_around_it_and_refusals():
    box = optax.projections.projection_non_negative
    rule = bl.projected(bl.fixed_preconditioner(optax.adamw(1e-2, weight_decay=C)), box)
    assert np.all(bl.run(METHODS["aid"](rule), X, Y, steps=4).y >= 0)
    with pytest.raises(TypeError, match=r"write bl\.projected\(bl\.fixed_preconditioner"):
        bl.fixed_preconditioner(bl.projected(optax.adamw(1e-2), box))
    with pytest.raises(ValueError, match="decays y by itself"):
        bl.f2sa(PROBLEM, inner=bl.fixed_preconditioner(optax.adamw(1e-2)), outer=0.1, penalty=10.0).init(X, Y)
    every_third = optax.MultiSteps(optax.adamw(1e-2), 3).gradient_transformation()
    with pytest.raises(ValueError, match=r"bl\.fixed_preconditioner was given"):
        METHODS["aid"](bl.fixed_preconditioner(every_third)).init(X, Y)
