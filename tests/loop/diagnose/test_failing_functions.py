"""Who is blamed when a run breaks: a rule without a slope, and an objective that raises as it runs."""

import itertools

import jax
import jax.numpy as jnp
import optax
import pytest

import bilevel as bl
from run_options import with_options

DEAD = {
    "itd": lambda p, rule: bl.itd(p, inner=rule, outer=0.1),
    "itd_3_steps": lambda p, rule: bl.itd(p, inner=rule, outer=0.1, inner_steps=3),
    "rtho": lambda p, rule: bl.solvers.rtho(p, inner=rule, outer=0.1),
    "forward_itd": lambda p, rule: bl.solvers.forward_itd(p, inner=rule, outer=0.1, inner_steps=2),
    "sama": lambda p, rule: bl.solvers.sama(p, inner=rule, outer=0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEAD)
def test_a_rule_without_a_slope_is_named(name):
    """Where an entry of ∇_y g is exactly 0, as of the first here, Adam's root has an infinite slope."""
    inner = lambda x, y: jnp.sum((y - x) ** 2)
    problem = bl.Problem(inner=inner, outer=lambda x, y: jnp.sum((y - 3) ** 2))
    start = jnp.array([0.0, 1.0]), jnp.zeros(2)
    with jax.numpy_dtype_promotion("standard"):
        broken = bl.run(DEAD[name](problem, optax.adam(0.1)), *start, steps=5)
        lifted = bl.run(DEAD[name](problem, optax.adam(0.1, eps_root=1e-8)), *start, steps=5)
    assert broken.status.code is bl.Code.DIVERGED
    assert broken.status.step == 0
    assert "derivative of the inner rule" in broken.status.message
    assert "pass eps_root=1e-8" in broken.status.message
    assert lifted.status.code is bl.Code.COMPLETED


def test_a_rule_without_a_slope_that_x_does_not_see_is_not_blamed():
    inner = lambda x, y: jnp.sum((y[:2] - x) ** 2)  # the third is dead, and x has nothing to do with it
    outer = lambda x, y: 1e6 * jnp.sum((y - 1) ** 2)
    solver = bl.itd(bl.Problem(inner=inner, outer=outer), inner=optax.adam(0.1), outer=1e305)
    with jax.numpy_dtype_promotion("standard"):
        result = bl.run(solver, jnp.ones(2) / 2, jnp.zeros(3), steps=5)
    assert result.status.code is bl.Code.DIVERGED
    assert "derivative of the inner rule" not in result.status.message


@pytest.mark.slow
@pytest.mark.parametrize("how", ["loader", "long", "offload"])
def test_the_error_of_an_objective_that_raises_as_it_runs_is_told(how, monkeypatch):
    """After steps of the same chunk, whose rows go with it."""
    calls = []

    def raises(value):
        calls.append(value)
        if len(calls) > 40:
            raise ZeroDivisionError("of the user's own")
        return value

    def outer(x, y):
        value = jnp.sum((y - 1) ** 2)
        shape = jax.ShapeDtypeStruct((), value.dtype)
        return value + 0 * jax.pure_callback(raises, shape, jax.lax.stop_gradient(value))

    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=outer)
    if how == "long":
        monkeypatch.setattr("bilevel.loop.single_run.LONG_STEPS", 0)
    data = {"data": itertools.repeat(bl.Batch())} if how == "loader" else {}
    more = {"offload": "outer"} if how == "offload" else {}
    solver = bl.soba(problem, inner=0.1, adjoint=0.1, outer=optax.sgd(0.1, momentum=0.9))
    with pytest.raises(bl.RunError) as caught:
        bl.run(
            solver,
            jnp.zeros(2),
            jnp.zeros(2),
            steps=200,
            **with_options({**data, **more} | dict(every=30)),
        )
    assert "Array has been deleted" not in str(caught.value)
    assert "of the user's own" in str(caught.value.__cause__)
