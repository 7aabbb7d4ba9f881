"""Unrolled hypergradients against automatic differentiation through the whole loop, and their biased limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from implicit_reference import last_x, ridge
from jax.flatten_util import ravel_pytree

import bilevel as bl
from bilevel import itd
from bilevel.counting import Counts, oracle_calls
from bilevel.solvers import forward_itd, rtho
from zoo import PROBLEMS

X0, Y0 = jnp.array([0.4, -0.8]), jnp.array([1.1, -0.3])


def outer(x, y):
    return jnp.sum(jnp.sin(x) * y**2) + 0.5 * jnp.sum(y * jnp.cos(x[::-1]))


def inner(x, y):
    return jnp.sum(jnp.cosh(y) + 0.5 * (1 + x**2) * y**2 - jnp.sin(x) * y) + 0.1 * y[0] * y[1]


NONLINEAR = bl.Problem(
    outer=outer, inner=inner
)  # its second derivatives vary, so the points they are taken at matter

RULES = {
    "gradient_descent": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.05),  # its memory also holds an integer
}
RMSPROP = optax.rmsprop(0.1)
LOOPS = [(1, None, 1), (6, None, 1), (6, 1, 1), (7, 3, 1), (12, None, 3), (12, 9, 4)]


def by_autodiff(rule, steps, truncate, x, y, memory):
    """d/dx of f after the steps, all but the last `truncate` of them held fixed."""

    def whole_loop(x):
        def step(point, _):
            at, remembered = point
            updates, remembered = rule.update(jax.grad(inner, 1)(x, at), remembered, at)
            return (optax.apply_updates(at, updates), remembered), None

        point, _ = jax.lax.scan(step, (y, memory), length=steps - truncate)
        (end, _), _ = jax.lax.scan(step, jax.lax.stop_gradient(point), length=truncate)
        return outer(x, end)

    return jax.jit(jax.grad(whole_loop))(x)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("steps", "truncate", "every"), LOOPS)
def test_the_hypergradient_is_autodiff_through_the_loop(rule, steps, truncate, every):
    with jax.numpy_dtype_promotion("standard"):  # optax's adam needs it
        solver = itd(
            NONLINEAR, inner=rule, outer=0.05, inner_steps=steps, truncate=truncate, checkpoint_every=every
        )
        state, _ = jax.jit(solver.step)(solver.init(X0, Y0))  # from a memory that is not empty
        expected = by_autodiff(rule, steps, truncate or steps, state.x, state.y, state.inner)
        _, info = jax.jit(solver.step)(state)
        np.testing.assert_allclose(info.hypergradient, expected, rtol=1e-10)
        np.testing.assert_allclose(info.inner_gradient, jax.grad(inner, 1)(state.x, state.y), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_forward_mode_equals_reverse_mode(rule):
    with jax.numpy_dtype_promotion("standard"):
        reverse, forward = (
            make(NONLINEAR, inner=rule, outer=0.05, inner_steps=5) for make in (itd, forward_itd)
        )
        a, b = reverse.init(X0, Y0), forward.init(X0, Y0)
        for _ in range(3):
            (a, left), (b, right) = jax.jit(reverse.step)(a), jax.jit(forward.step)(b)
            np.testing.assert_allclose(left.hypergradient, right.hypergradient, rtol=1e-10)
            np.testing.assert_allclose(left.inner_gradient, right.inner_gradient, rtol=1e-10)
            np.testing.assert_allclose(a.y, b.y, rtol=1e-12)


@pytest.mark.mathematics("forward_itd")
def test_forward_mode_equals_reverse_mode_on_trees():
    case = PROBLEMS["trees"](float)
    reverse, forward = (
        make(case.problem, inner=1 / case.L, outer=0.05, inner_steps=4) for make in (itd, forward_itd)
    )
    infos = [jax.jit(s.step)(s.init(case.x0, case.y0, case.data), case.data)[1] for s in (reverse, forward)]
    left, right = (ravel_pytree(info.hypergradient)[0] for info in infos)
    np.testing.assert_allclose(left, right, rtol=1e-10)


@pytest.mark.parametrize(("steps", "truncate"), [(1, None), (4, None), (10, None), (10, 4), (10, 1)])
def test_the_biased_limit_on_the_quadratic(steps, truncate):
    """The estimator is Zx + m L Z⁻¹(I − (I − αZ)ᵀ)1: only how many steps are differentiated counts.

    So ∇Φ at the limit is m L Z⁻¹(I − αZ)ᵀ1, of norm m κ (1 − 1/κ)ᵀ for α = 1/L.
    """
    kappa, depth = 5.0, truncate or steps
    q = bl.problems.quadratic(kappa=kappa)
    solver = itd(q.problem, inner=1 / q.L, outer=0.5 / q.L, inner_steps=steps, truncate=truncate)
    x = last_x(solver, jnp.ones(2), jnp.zeros(2), steps=2000)
    z = np.array([q.L, q.mu])
    left = (1 - z / q.L) ** depth
    np.testing.assert_allclose(x, -0.1 * q.L / z**2 * (1 - left), rtol=1e-9)
    np.testing.assert_allclose(
        jnp.linalg.norm(q.hypergradient(x)), 0.1 * kappa * (1 - 1 / kappa) ** depth, rtol=1e-8
    )


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "truncate"), [(1, None), (8, None), (8, 3)])
def test_the_biased_limit_on_ridge_logistic(steps, truncate):
    """At the limit y is y*(x), and f_x − ∇²_xy g H⁻¹(I − (I − αH)ᵀ)f_y vanishes there, by dense algebra."""
    p, dense = ridge()
    solver = itd(p.problem, inner=1 / p.L, outer=1.0, inner_steps=steps, truncate=truncate)
    x = last_x(solver, jnp.zeros(5), jnp.zeros(5), p.data, steps=1500)

    def biased(H, b):
        left = jnp.linalg.matrix_power(jnp.eye(5) - H / p.L, truncate or steps)
        return jnp.linalg.solve(H, b - left @ b)

    assert jnp.linalg.norm(dense.estimate(x, biased)) < 1e-10
    share = (1 - p.mu / p.L) ** (truncate or steps)
    f_y = dense.outer_gradients(x, dense.inner_solution(x))[1]
    bound = jnp.linalg.norm(dense.cross(x, dense.inner_solution(x)), 2) * share / p.mu * jnp.linalg.norm(f_y)
    assert 1e-6 < jnp.linalg.norm(dense.hypergradient(x)) <= bound


@pytest.mark.slow
def test_a_long_loop_has_no_bias_left_on_ridge_logistic():
    p, dense = ridge()
    solver = itd(p.problem, inner=1 / p.L, outer=1.0, inner_steps=200, checkpoint_every=14)
    x = last_x(solver, jnp.zeros(5), jnp.zeros(5), p.data, steps=700)
    assert jnp.linalg.norm(dense.hypergradient(x)) < 1e-10


@pytest.mark.mathematics("rtho")
def test_rtho_has_no_bias_with_one_step():
    q = bl.problems.quadratic(kappa=5.0)
    x = last_x(rtho(q.problem, inner=1 / q.L, outer=0.5 / q.L), jnp.ones(2), jnp.zeros(2), steps=2000)
    np.testing.assert_allclose(x, q.solution, rtol=1e-9)
    p, dense = ridge()
    x = last_x(rtho(p.problem, inner=1 / p.L, outer=1.0), jnp.zeros(5), jnp.zeros(5), p.data, steps=1500)
    assert jnp.linalg.norm(dense.hypergradient(x)) < 1e-10


@pytest.mark.slow
def test_checkpointing_makes_memory_grow_like_the_square_root():
    """By the compiler's own account of temporary memory, on a y so long that the stored iterates dominate."""
    size = 20_000
    problem = bl.Problem(
        outer=lambda x, y: jnp.sum(y * y),
        inner=lambda x, y: 0.5 * jnp.sum(y**2) + x * jnp.sum(jnp.cos(y)),
    )

    def iterates_held(steps, every):
        solver = itd(problem, inner=0.1, outer=0.1, inner_steps=steps, checkpoint_every=every)
        state = jax.eval_shape(solver.init, jnp.zeros(()), jnp.zeros(size))
        return jax.jit(solver.step).lower(state).compile().memory_analysis().temp_size_in_bytes / (8 * size)

    lengths = [64, 256, 1024]
    stored = [iterates_held(n, 1) for n in lengths]
    checkpointed = [iterates_held(n, round(n**0.5)) for n in lengths]
    growth = lambda held: np.polyfit(np.log(lengths), np.log(held), 1)[0]
    assert growth(stored) > 0.9
    assert growth(checkpointed) < 0.6
    assert checkpointed[-1] < 5 * 1024**0.5 < stored[-1]


def test_memory_in_forward_mode_does_not_grow():
    problem = bl.Problem(
        outer=lambda x, y: jnp.sum(y * y),
        inner=lambda x, y: 0.5 * jnp.sum(y**2) + x * jnp.sum(jnp.cos(y)),
    )

    def bytes_held(steps):
        solver = forward_itd(problem, inner=0.1, outer=0.1, inner_steps=steps)
        state = jax.eval_shape(solver.init, jnp.zeros(()), jnp.zeros(1000))
        return jax.jit(solver.step).lower(state).compile().memory_analysis().temp_size_in_bytes

    assert bytes_held(1000) - bytes_held(10) <= 8 * 1000  # the times, not the iterates


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: itd(p, inner=RMSPROP, outer=0.1, inner_steps=6), Counts(2, 6 + 5, 6, 6)),
        (lambda p: itd(p, inner=RMSPROP, outer=0.1, inner_steps=6, truncate=3), Counts(2, 6 + 2, 3, 3)),
        (lambda p: itd(p, inner=0.1, outer=0.1, inner_steps=6, truncate=1), Counts(2, 6, 0, 1)),
        (
            lambda p: itd(p, inner=RMSPROP, outer=0.1, inner_steps=7, checkpoint_every=3),
            Counts(2, 7 + 6 + 6, 7, 7),
        ),
    ],
    ids=["rmsprop", "rmsprop_truncated_3", "truncated_1", "rmsprop_checkpointed"],
)
def test_counts(make, expected):
    """Gradient descent's derivative is the same at every gradient, so the way back takes none (docs/test_counts.py);
    rmsprop's is not."""
    solver = make(NONLINEAR)
    assert oracle_calls(solver, solver.init(X0, Y0)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_oracles_of_forward_mode_and_aggregation_equal_dense_blocks(problem):
    case = PROBLEMS[problem](float)
    rng = np.random.default_rng(3)
    (x, unravel_x), (y, unravel_y) = ravel_pytree(case.x0), ravel_pytree(case.y0)
    x, dx = (jnp.asarray(rng.normal(size=x.shape)) for _ in range(2))
    y, dy = (jnp.asarray(rng.normal(size=y.shape)) for _ in range(2))
    flat = lambda objective: lambda x, y: objective(unravel_x(x), unravel_y(y), case.data)
    f, g = flat(case.problem.f), flat(case.problem.g)
    at = unravel_x(x), unravel_y(y), case.data

    joint = case.problem.oracles.linearize_jointly(*at)
    yx, yy = jax.jit(jax.jacfwd(jax.grad(g, 1), (0, 1)))(x, y)
    pushed = ravel_pytree(joint.push(unravel_x(dx), unravel_y(dy)))[0]
    np.testing.assert_allclose(pushed, yx @ dx + yy @ dy, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(ravel_pytree(joint.gradient)[0], jax.grad(g, 1)(x, y), rtol=1e-12)

    lin = case.problem.oracles.linearize_outer(*at)
    xy, yy = jax.jit(jax.jacfwd(jax.grad(f, (0, 1)), 1))(x, y)
    np.testing.assert_allclose(ravel_pytree(lin.gradient)[0], jax.grad(f, 1)(x, y), rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(lin.hessian(unravel_y(dy)))[0], yy @ dy, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(ravel_pytree(lin.cross(unravel_y(dy)))[0], xy @ dy, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(inner_steps=0), "inner_steps must be a whole number of at least 1, not 0"),
        (dict(inner_steps=3, truncate=4), "truncate=4 asks to differentiate more steps than inner_steps=3"),
        (dict(inner_steps=3, truncate=0), "truncate must be a whole number of at least 1, not 0"),
        (
            dict(inner_steps=3, checkpoint_every=0),
            "checkpoint_every must be a whole number of at least 1, not 0",
        ),
        (dict(inner=-0.1), "inner step size must be a positive number, not -0.1"),
        (dict(outer=0.0), "outer step size must be a positive number, not 0.0"),
    ],
)
def test_bad_input_to_itd(wrong, message):
    with pytest.raises(ValueError, match=message):
        itd(NONLINEAR, **(dict(inner=0.1, outer=0.1) | wrong))


@pytest.mark.parametrize("make", [forward_itd, rtho])
def test_bad_input_to_forward_mode(make):
    with pytest.raises(ValueError, match="inner_steps must be a whole number of at least 1, not -1"):
        make(NONLINEAR, inner=0.1, outer=0.1, inner_steps=-1)
    with pytest.raises(ValueError, match="inner step size must be a positive number, not nan"):
        make(NONLINEAR, inner=float("nan"), outer=0.1)
