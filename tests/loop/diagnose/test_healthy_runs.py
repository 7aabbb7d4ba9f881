"""Runs with nothing wrong: neither the status nor the diagnosis accuses the problem, a rule or a step size."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from run_options import with_options

ACCUSATIONS = (
    "depend on x",
    "depends on",
    "too small",
    "too large",
    "never moved",
    "lower the",
    "Lower it",
    "Raise",
    "raise",
    "blow-up",
    "underflow",
    "no lower bound",
    "does not move y",
    "piecewise",
    "against it",
    "NaN",
    "not finite",
    "also at points close to x and y",
)
FINE = {"x_rests"}  # findings that say that all is well
ONES, TARGET = jnp.ones(2), 2.0


@cache
def problem() -> bl.Problem:
    """y*(x) = x and Φ(x) = ‖x − 2‖², whose solution is 2."""
    return bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - TARGET) ** 2)
    )


@cache
def averages() -> bl.Problem:
    return bl.Problem(
        inner=lambda x, y, rows: jnp.mean((y - x - rows) ** 2),
        outer=lambda x, y, rows: jnp.mean((y - rows - 1) ** 2),
    )


def aid(outer=0.1) -> bl.Solver:
    return bl.aid(problem(), inner=0.5, adjoint=0.5, outer=outer)


def box() -> bl.Solver:
    return aid(bl.projected(0.1, lambda x: jnp.clip(x, 0.0, 1.5)))


def run(solver, x0=ONES, **options):
    return bl.run(
        solver,
        x0,
        ONES.astype(x0.dtype),
        **with_options({"steps": 300, "diagnose": True} | options),
    )


def resumed(steps: int) -> bl.Result:
    return bl.run(
        aid(),
        steps=100,
        resume=run(aid(), steps=steps, diagnose=False, every=50),
        options=bl.RunOptions(every=50, diagnose=True),
    )


def on_batches(kind: str) -> bl.Result:
    data = bl.Batch(inner=jnp.arange(10.0), outer=jnp.arange(10.0))
    stream = bl.epochs(data, 5) if kind == "stream" else [data] * 300
    start = jnp.zeros(()), jnp.zeros(())
    return bl.run(
        bl.soba(averages(), inner=0.1, adjoint=0.1, outer=0.05),
        *start,
        data=stream,
        steps=300,
        options=bl.RunOptions(diagnose=True),
    )


def plateau() -> bl.Result:
    """Φ is next to flat where x begins, then falls, then is at rest."""
    bell = bl.Problem(inner=problem().g.function, outer=lambda x, y: -jnp.sum(jnp.exp(-0.5 * (y - 4.0) ** 2)))
    return bl.run(
        bl.aid(bell, inner=0.5, adjoint=0.5, outer=0.2),
        0.5 * ONES,
        0.5 * ONES,
        steps=6000,
        options=bl.RunOptions(every=2000),
    )


SLOW = ("tuning-free", "tuning-free at a bound", "minibatches", "ITD")
CONVERGED = {
    "AID": lambda: run(aid(), steps=400),
    "in single precision": lambda: run(aid(), ONES.astype(jnp.float32)),
    "in half precision": lambda: run(aid(), ONES.astype(jnp.bfloat16)),
    "in two steps": lambda: run(bl.aid(problem(), inner=1.0, adjoint=1.0, outer=0.5), steps=20),
    "thin": lambda: run(aid(), steps=400, thin=1000),
    "at a bound": lambda: run(box()),
    "at a bound from the start": lambda: run(box(), 1.5 * ONES),
    "at the solution from the start": lambda: bl.run(
        aid(), TARGET * ONES, TARGET * ONES, steps=50, options=bl.RunOptions(diagnose=True)
    ),
    "resumed on the way": lambda: resumed(300),
    "resumed at the solution": lambda: resumed(400),
    "ITD": lambda: run(bl.itd(problem(), inner=0.5, outer=0.1, inner_steps=40), steps=800),
    "BOME": lambda: run(bl.solvers.bome(problem(), inner=0.1, outer=0.1), steps=1500),
    "tuning-free": lambda: run(bl.tuning_free(problem()), steps=120),
    "tuning-free at a bound": lambda: run(
        bl.tuning_free(problem(), project=lambda x: jnp.clip(x, 0.0, 1.5)), steps=120
    ),
}
OTHERS = {
    "plateau, then a drop": plateau,
    "minibatches": lambda: on_batches("stream"),
    "a loader": lambda: on_batches("loader"),
    "on its way": lambda: run(aid(), steps=20, diagnose=False),
    "halved": lambda: run(aid(), on_divergence="halve", every=50),
    "a tolerance at the solution": lambda: bl.run(
        aid(), TARGET * ONES, TARGET * ONES, steps=50, tol=1e-6, options=bl.RunOptions(diagnose=True)
    ),
    "with a schedule that ends": lambda: run(aid(optax.sgd(lambda k: 0.2 * jnp.cos(k.astype(float) / 200)))),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in (CONVERGED | OTHERS)],
)
def test_nothing_is_accused(name):
    result = (CONVERGED | OTHERS)[name]()
    assert result.status.code in (bl.Code.COMPLETED, bl.Code.CONVERGED), result.status
    assert not [word for word in ACCUSATIONS if word in result.status.message], result.status
    if result.diagnosis is not None:
        assert {each.code for each in result.diagnosis.findings} <= FINE, str(result.diagnosis)
    if name in CONVERGED:
        words = ("x has converged to rounding", "x has not moved")
        assert any(word in result.status.message for word in words), result.status
        assert "Check" not in result.status.message
        expected = 1.5 if "bound" in name else TARGET
        precision = 0.05 if "half" in name else 1e-3
        np.testing.assert_allclose(jnp.asarray(result.x, float), expected, rtol=precision)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-45, 1e-30, 1e-10])
def test_the_measure_of_a_step_that_rounding_loses_is_that_of_a_longer_one(size):
    """At the bound x is stationary; inside it is not, and no tolerance calls it converged."""
    x, kind = ONES.astype(jnp.float32), jnp.float32
    rule = bl.projected(size, lambda x: jnp.clip(x, jnp.asarray(0, x.dtype), jnp.asarray(1.5, x.dtype)))
    inside, bound = (
        bl.run(aid(rule), start, x, steps=40, tol=1e-3) for start in (x, jnp.asarray(1.5, kind) * x)
    )
    assert inside.status.code is bl.Code.COMPLETED
    assert "the outer steps are too small to change x in float32" in inside.status.message
    np.testing.assert_allclose(inside.trace["stationarity"], inside.trace["hypergradient_norm"], rtol=1e-2)
    assert bound.status.code is bl.Code.CONVERGED
    np.testing.assert_array_equal(bound.trace["stationarity"], 0)


@pytest.mark.parametrize("every", [39, 40])
def test_a_short_last_chunk_hides_no_standstill(every):
    result = bl.run(aid(1e-20), ONES, ONES, steps=40, options=bl.RunOptions(every=every))
    assert "the outer steps are too small to change x" in result.status.message


def test_a_measure_of_a_step_that_is_not_lost_is_the_quotient():
    x, h = jnp.array([0.3, 1.4]), jnp.array([0.5, -2.0])
    rule = bl.projected(0.1, lambda x: jnp.clip(x, 0.0, 1.5))
    by_hand = (x - np.clip(x - 0.1 * h, 0.0, 1.5)) / 0.1
    np.testing.assert_allclose(rule.gradient_mapping(x, h), by_hand)
    zero = jax.tree.map(jnp.zeros_like, h)
    np.testing.assert_array_equal(rule.gradient_mapping(x, zero), 0)


@pytest.mark.slow
def test_a_trace_without_a_row_has_its_columns():
    """When no step is good: of a run, of a sweep's lane, and of a run that goes on from there."""
    broken = bl.Problem(inner=lambda x, y: jnp.nan * y @ y, outer=lambda x, y: y @ y)
    solver, start = bl.aid(broken, inner=0.1, adjoint=0.1, outer=0.1), (jnp.zeros(4), jnp.zeros(4))
    keep = lambda state, info: {"y": state.y, "count": jnp.int32(1)}
    good = bl.run(aid(), ONES, ONES, steps=3)
    whole = bl.run(solver, *start, steps=10, record=keep)
    again = bl.run(solver, steps=10, resume=whole, record=keep)
    lane = bl.sweep([solver, solver], *start, steps=3, record=keep)[1]
    thinned = bl.run(solver, *start, steps=10, record=keep, options=bl.RunOptions(thin=3))
    for result in (whole, again, lane, thinned):
        assert (result.status.code, result.steps) == (bl.Code.DIVERGED, 0)
        assert set(result.trace) - {"step"} == {*good.trace, "y", "count"}
        shapes = {name: (column.shape, column.dtype) for name, column in result.trace.items()}
        assert shapes["outer_value"] == ((0,), np.float64)
        assert shapes["y"] == ((0, 4), np.float64)
        assert shapes["count"] == ((0,), np.int32)
        assert "diverged after 0 steps" in str(result)
    assert thinned.trace["step"].shape == (0,)
