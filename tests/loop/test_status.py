"""Outcomes tell the truth: what broke, when, whose fault it was, and a remedy that applies."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.loop.status import diverged
from run_options import with_options

X0, Y0 = jnp.ones(2), jnp.zeros(2)
Q = bl.problems.quadratic(kappa=4.0)
STEP = 1 / Q.L


@pytest.mark.slow
def test_memory_that_is_infinite_from_the_beginning_is_not_divergence():
    outer = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=3))
    solver = bl.itd(Q.problem, inner=STEP, outer=outer)
    with jax.numpy_dtype_promotion("standard"):
        assert bl.run(solver, X0, X0, steps=5).status.code is bl.Code.COMPLETED


@pytest.mark.slow
def test_a_method_without_step_sizes_is_not_told_to_lower_one():
    edge = bl.Problem(
        inner=lambda x, y: jnp.sum((y - x**1.5) ** 2), outer=lambda x, y: jnp.sum(y)
    )  # NaN for x < 0
    result = bl.run(bl.solvers.s_tfbo(edge), X0, Y0, steps=5_000)
    assert result.status.code is bl.Code.DIVERGED
    assert result.status.variable in ("x", "y", "v")
    assert "lower the" not in result.status.message
    assert "the inner objective g is NaN" in result.status.message
    otherwise = diverged(bl.solvers.s_tfbo(edge), 3, ["x"]).message  # where no objective is to blame
    assert "has no step size there to lower" in otherwise
    assert "lower the" not in otherwise


@pytest.mark.slow
def test_a_projecting_rule_converges_by_its_own_measure():
    """min ½‖y − c‖² with y*(x) = x and x ≥ 0: at x = max(c, 0) the raw hypergradient is not zero."""
    c = jnp.array([2.0, -3.0])
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: 0.5 * jnp.sum((y - c) ** 2)
    )
    for rule in (0.2, optax.sgd(0.2), optax.inject_hyperparams(optax.sgd)(0.2)):
        solver = bl.aid(
            problem,
            inner=1.0,
            adjoint=1.0,
            outer=bl.projected(rule, optax.projections.projection_non_negative),
        )
        result = bl.run(solver, X0, Y0, steps=5_000, tol=1e-9)
        assert result.status.code is bl.Code.CONVERGED
        np.testing.assert_allclose(result.x, [2.0, 0.0], atol=1e-8)
        assert result.trace["stationarity"][-1] <= 1e-9
        assert result.trace["hypergradient_norm"][-1] > 2.9


@pytest.mark.usefixtures("as_users_see_it")
def test_bad_projections_are_refused():
    with pytest.raises(TypeError, match="project must be a function"):
        bl.projected(0.1, 3.0)
    with pytest.raises(ValueError, match="projected step size must be a positive number"):
        bl.projected(-1, optax.projections.projection_non_negative)


@pytest.mark.slow
def test_replay_off_says_that_nothing_was_kept():
    solver = bl.aid(Q.problem, inner=1e3 * STEP, adjoint=STEP, outer=1e-3)
    result = bl.run(solver, X0, Y0, steps=5_000, options=bl.RunOptions(snapshots="off"))
    assert result.status.code is bl.Code.DIVERGED
    assert 'snapshots="off"' in result.status.message
    kept = bl.run(
        solver,
        X0,
        Y0,
        steps=5_000,
        options=bl.RunOptions(snapshots="host", every=100),
    )
    best = bl.run(
        solver,
        X0,
        Y0,
        steps=5_000,
        options=bl.RunOptions(snapshots="device", every=7),
    )
    assert kept.status == best.status
    np.testing.assert_array_equal(kept.x, best.x)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(kept.state))


@pytest.mark.usefixtures("as_users_see_it")
def test_resuming_another_run_is_refused_before_any_work():
    solver = bl.aid(Q.problem, inner=STEP, adjoint=STEP, outer=0.1)
    result = bl.run(solver, X0, Y0, steps=3)
    refused = lambda words, other, **more: pytest.raises(ValueError, match=words)
    other_problem = bl.Problem(inner=Q.g, outer=lambda x, y: 2 * Q.f(x, y))
    for words, other, more in (
        ("its solver was AID", bl.itd(Q.problem, inner=STEP, outer=0.1), {}),
        ("its solver was AID", bl.aid(Q.problem, inner=STEP, adjoint=STEP, outer=optax.adam(0.1)), {}),
        ("its outer objective was", bl.aid(other_problem, inner=STEP, adjoint=STEP, outer=0.1), {}),
        ("its data was", solver, {"data": bl.Batch(inner=jnp.ones(3))}),
    ):
        with refused(words, other) as refusal:
            bl.run(other, steps=3, resume=result, **with_options(more))
        assert "x0=result.x" in str(refusal.value)
    again = bl.run(
        bl.aid(Q.problem, inner=STEP, adjoint=STEP, outer=0.05), steps=3, resume=result
    )  # another step size is no other run
    assert again.steps == 6
    with pytest.raises(TypeError, match="result of an earlier run"):
        bl.run(solver, steps=3, resume=result.x)
    with pytest.raises(TypeError, match=r"use bl\.scan there"):
        jax.jit(lambda x: bl.run(solver, x, Y0, steps=2).x)(X0)


RULES = {
    "lbfgs": lambda: optax.lbfgs(),
    "lbfgs, no search": lambda: optax.lbfgs(0.1, linesearch=None),
    "polyak_sgd": lambda: optax.polyak_sgd(max_learning_rate=0.05),
    "reduce_on_plateau": lambda: optax.chain(optax.sgd(0.05), optax.contrib.reduce_on_plateau(patience=2)),
    "backtracking": lambda: optax.chain(
        optax.sgd(1.0), optax.scale_by_backtracking_linesearch(max_backtracking_steps=15)
    ),
    "injected": lambda: optax.inject_hyperparams(optax.sgd)(0.05),
    "schedule": lambda: optax.sgd(optax.exponential_decay(0.05, 10, 0.9)),
    "multi_steps": lambda: optax.MultiSteps(optax.sgd(0.05), 2).gradient_transformation(),
    "masked": lambda: optax.masked(optax.sgd(0.05), True),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.05)),
    "lookahead-free adamw": lambda: optax.adamw(1e-2),
    "nadam": lambda: optax.nadam(1e-2),
    "lion": lambda: optax.lion(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.sgd(0.05), 3),
}


NO_REST = "lookahead-free adamw", "lion"  # where they rest depends on their memory: not for an inner level


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_the_family_of_optax_rules_runs_at_every_level(name):
    rule = RULES[name]()
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):  # not all of optax is strict
        inner = STEP if name in NO_REST else rule
        if name in NO_REST:
            with pytest.raises(ValueError, match="depends on its memory"):
                bl.run(bl.aid(Q.problem, inner=rule, adjoint=STEP, outer=0.05), X0, Y0, steps=12)
        result = bl.run(bl.aid(Q.problem, inner=inner, adjoint=rule, outer=rule), X0, Y0, steps=12, warmup=1)
    assert result.status.code is bl.Code.COMPLETED
    assert np.all(np.isfinite(result.trace["outer_value"]))
    assert not np.array_equal(result.x, X0)


@pytest.mark.slow
def test_extra_arguments_are_the_value_the_gradient_and_the_function_of_each_level():
    seen = {}

    def spy(level):
        def update(updates, state, params=None, *, value, grad, value_fn, **_):
            seen[level] = (value, grad, value_fn(params), jax.grad(value_fn)(params))
            return jax.tree.map(lambda g: -0.1 * g, updates), state

        return optax.GradientTransformationExtraArgs(lambda params: (), update)

    solver = bl.aid(Q.problem, inner=spy("inner"), adjoint=spy("adjoint"), outer=spy("outer"))
    state = solver.init(X0, Y0)
    _, info = solver.step(state)
    np.testing.assert_allclose(seen["inner"][0], Q.g(X0, Y0))
    np.testing.assert_allclose(seen["inner"][1], info.inner_gradient)
    for level in seen:
        value, grad, again, derivative = seen[level]
        np.testing.assert_allclose(value, again)
        np.testing.assert_allclose(derivative, grad, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(seen["outer"][1], info.hypergradient)


@pytest.mark.slow
def test_itd_refuses_to_differentiate_through_a_line_search():
    with jax.numpy_dtype_promotion("standard"), pytest.raises(TypeError, match="searches along a line"):
        bl.run(bl.itd(Q.problem, inner=optax.lbfgs(), outer=0.1), X0, Y0, steps=2)
