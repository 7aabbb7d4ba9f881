"""Faults with one culprit each: the status names it, with a remedy, and blames nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from run_options import with_options

X = jnp.ones(2)
X32 = X.astype(jnp.float32)


def g(x, y):
    return 0.5 * jnp.sum((y - x) ** 2)


def f(x, y):
    return jnp.sum((y - 2.0) ** 2)


P = bl.Problem(inner=g, outer=f)


def edge(x):
    """The identity up to 1.5, NaN beyond."""
    return jnp.where(x > 1.5, jnp.nan, x)


def named(solver, *words, steps=3000, x0=X, y0=X, variable=None, **options):
    """The status has these words, names the variable, and asks for no smaller step."""
    result = bl.run(solver, x0, y0, steps=steps, **with_options(options))
    for word in words:
        assert word in result.status.message, result.status
    for word in ("lower the", "Does f depend on x"):
        assert word not in result.status.message, result.status
    assert variable is None or result.status.variable == variable, result.status
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((result.x, result.y)))
    return result


def test_a_projection_of_x_that_returns_nan():
    outer = bl.aid(P, inner=0.5, adjoint=0.5, outer=bl.projected(0.1, edge))
    named(outer, "the projection of the outer rule returns NaN", "at the x of the next steps", variable="x")


@pytest.mark.slow
def test_a_projection_of_y_that_returns_nan_and_one_that_always_does():
    inner = bl.aid(P, inner=bl.projected(0.5, edge), adjoint=0.5, outer=0.1)
    named(inner, "the projection of the inner rule returns NaN", "at the y of the next steps", variable="y")
    always = bl.projected(0.1, lambda x: x / jnp.sum(0 * x))
    for policy in ("stop", "halve"):
        result = named(
            bl.aid(P, inner=0.5, adjoint=0.5, outer=always),
            "test it at this x",
            variable="x",
            on_divergence=policy,
        )
        assert result.halvings == ()  # no smaller step leaves that point


@pytest.mark.slow
def test_a_proximal_map_that_returns_nan_or_has_no_derivative():
    words = "the problem's proximal map prox returns NaN"
    beyond = bl.Problem(inner=g, outer=f, prox=lambda x, z, step: edge(z))
    named(bl.aid(beyond, inner=0.5, adjoint=0.5, outer=0.1), words, variable="y")
    root = bl.Problem(inner=g, outer=f, prox=lambda x, z, step: jnp.sqrt(z - 1.2))
    named(bl.itd(root, inner=0.5, outer=0.1), words, y0=2 * X, variable="y")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["inner", "adjoint", "outer"])
@pytest.mark.parametrize("momentum", [None, 0.9])
def test_a_schedule_that_becomes_negative(level, momentum):
    rule = optax.sgd(lambda k: 0.5 - 0.02 * k.astype(float), momentum=momentum)
    rules = {"inner": 0.5, "adjoint": 0.5, "outer": 0.01} | {level: rule}
    variable = {"inner": "y", "adjoint": "v", "outer": "x"}[level]
    words = f"the {level} rule steps along the gradient instead of against it", "a schedule fall below zero"
    named(bl.aid(P, **rules), *words, variable=variable)


def test_a_negative_learning_rate_is_named_in_a_finite_blow_up_too():
    result = named(
        bl.aid(P, inner=0.5, adjoint=0.5, outer=optax.sgd(-0.1)),
        "finite blow-up: the outer rule steps",
        steps=60,
    )
    assert result.status.code is bl.Code.COMPLETED


@pytest.mark.slow
@pytest.mark.parametrize("make", [bl.aid, bl.itd])
def test_an_inner_objective_without_a_lower_bound(make):
    saddle = bl.Problem(inner=lambda x, y: 0.5 * (y[0] - x[0]) ** 2 - 0.5 * (y[1] - x[1]) ** 2, outer=f)
    sizes = {"inner": 0.5, "outer": 0.01} | ({} if make is bl.itd else {"adjoint": 0.5})
    words = "g has no lower bound in y", "No step size helps", "add a ridge to g"
    named(make(saddle, **sizes), *words, y0=0.5 * X, variable="y")
    # A step too large is still a step too large: there g rises.
    steep = bl.run(make(P, **sizes | {"inner": 2.5}), X, 0.5 * X, steps=3000)
    assert "the inner step size 2.5 is above 2/L = 2" in steep.status.message


def test_an_inner_objective_that_falls_while_x_runs_away_first():
    """Its gradient grows with the square of y, and x has overflowed before y is large."""
    cubic = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 3), outer=f)
    solver = bl.aid(cubic, inner=0.1, adjoint=0.5, outer=0.5)
    with jax.enable_x64(False):
        named(solver, "g has no lower bound in y", x0=0 * X32, y0=-X32, variable="y")


def test_an_adjoint_that_grows_along_negative_curvature():
    """Adam moves y slowly, so that only v runs away."""
    saddle = bl.Problem(inner=lambda x, y: 0.5 * (y[0] - x[0]) ** 2 - 0.5 * (y[1] - x[1]) ** 2, outer=f)
    words = "g is not convex in y", "curves by -1", "bl.adjoints.damped"
    solver = bl.aid(saddle, inner=optax.adam(0.1), adjoint=0.5, outer=0.5)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        named(solver, *words, x0=0 * X32, y0=0.1 * X32, variable="v")


@pytest.mark.parametrize("rule", [optax.lion(0.01), optax.sign_sgd(0.01)], ids=["lion", "sign"])
def test_an_inner_rule_that_uses_only_signs(rule):
    solver = bl.itd(P, inner=rule, outer=0.1, inner_steps=3)
    words = "x has never moved", "The inner rule uses the gradient's sign only", "a rule with a slope"
    with jax.numpy_dtype_promotion("standard"):
        named(solver, *words, y0=0 * X, steps=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "falling", [lambda y: -(y**2), lambda y: -(y**4), lambda y: -jnp.exp(y)], ids=["square", "fourth", "exp"]
)
def test_an_outer_objective_without_a_lower_bound(falling):
    problem = bl.Problem(inner=g, outer=lambda x, y: jnp.sum(falling(y)))
    named(
        bl.aid(problem, inner=0.5, adjoint=0.5, outer=0.1), "f has no lower bound", "bound x (bl.projected)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [bl.aid, bl.itd])
def test_an_inner_rule_that_never_moves_y(make):
    sizes = {"outer": 0.1} if make is bl.itd else {"adjoint": 0.5, "outer": 0.1}
    words = "x has never moved", "The inner rule does not move y", "optax.set_to_zero"
    result = named(make(P, inner=optax.set_to_zero(), **sizes), *words, steps=60, diagnose=True)
    (found,) = result.diagnosis.findings
    assert found.code == "x_dead"
    assert "The inner rule does not move y" in found.sentence


def test_an_inner_rule_that_holds_the_part_of_y_on_which_x_acts():
    halves = lambda x, y: 0.5 * jnp.sum((y["a"] - x) ** 2) + 0.5 * jnp.sum(y["b"] ** 2)
    problem = bl.Problem(inner=halves, outer=lambda x, y: f(x, y["a"]) + f(x, y["b"]))
    rule = optax.multi_transform(
        {"hold": optax.set_to_zero(), "move": optax.sgd(0.5)}, {"a": "hold", "b": "move"}
    )
    words = "or not the part of y on which x acts"
    named(bl.aid(problem, inner=rule, adjoint=0.5, outer=0.1), words, steps=40, y0={"a": X, "b": X})


@pytest.mark.parametrize("adjoint", [0.5, bl.adjoints.cg()], ids=["step", "cg"])
def test_an_inner_objective_that_is_piecewise_linear_in_y(adjoint):
    kinked = bl.Problem(inner=lambda x, y: jnp.sum(jnp.abs(y - x)), outer=f)
    words = "g is piecewise linear in y", "prox="
    named(bl.aid(kinked, inner=0.1, adjoint=adjoint, outer=0.1), *words, steps=60, y0=0 * X)


def test_an_outer_objective_that_underflows():
    tiny = bl.Problem(inner=g, outer=lambda x, y: 1e-42 * jnp.sum((y - 2.0) ** 2))
    words = "f underflows: in float64 its gradient is 2e-42", "Multiply f by a large number"
    for options in ({}, {"tol": 1e-6}):
        named(bl.aid(tiny, inner=0.5, adjoint=0.5, outer=0.1), *words, steps=60, x0=X32, y0=X32, **options)
    small = bl.Problem(inner=g, outer=lambda x, y: 1e-30 * f(x, y))  # whose square underflows
    words = "Its entries are not zero, but at most 2e-30", "multiply f by a large number"
    named(bl.aid(small, inner=0.5, adjoint=0.5, outer=0.1), *words, steps=60, x0=X32, y0=X32)


def test_a_probe_that_deletes_the_state_is_blamed_for_it():
    def probe(state, info):
        state.x.delete()
        return {"a": 1.0}

    with pytest.raises(
        bl.RunError, match=r"a hook raised RuntimeError .it deleted or donated arrays of the run"
    ):
        bl.run(
            bl.aid(P, inner=0.5, adjoint=0.5, outer=0.1), X, X, steps=10, options=bl.RunOptions(probe=probe)
        )


ADAM, SGD = optax.adam(0.1), optax.sgd(0.1)
CENTER = jnp.arange(1.0, 4.0)


def losses(y):
    return 0.5 * jnp.sum(CENTER * (y - 1.0) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "x0", "rule", "expected"),
    [
        (lambda x, y: jnp.exp(x) * losses(y), jnp.zeros(()), ADAM, "x"),
        (lambda x, y: jnp.exp(x) * losses(y), jnp.zeros(()), SGD, None),
        (lambda x, y: losses(y) + jnp.exp(x) * jnp.sum(y**2), jnp.zeros(()), ADAM, None),
        pytest.param(
            lambda x, y: jnp.sum(jax.nn.sigmoid(x) * (y - CENTER) ** 2),
            jnp.zeros(3),
            ADAM,
            None,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda x, y: jnp.exp(x["rate"]) * (losses(y) + x["decay"] * jnp.sum(y**2)),
            {"rate": jnp.zeros(()), "decay": jnp.asarray(0.1)},
            ADAM,
            "x['rate']",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["scale, Adam", "scale, SGD", "decay", "weights", "scale and decay"],
)
def test_an_x_that_only_scales_g_under_a_rule_that_is_scale_free(inner, x0, rule, expected):
    problem = bl.Problem(inner=inner, outer=f)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam is not strict
        result = bl.run(
            bl.itd(problem, inner=rule, outer=0.01),
            x0,
            jnp.zeros(3),
            steps=8,
            options=bl.RunOptions(diagnose=True),
        )
    found = [each.sentence for each in result.diagnosis.findings if each.code == "scale_free"]
    assert len(found) == (expected is not None)
    assert not found or found[0].startswith(f"{expected}: g depends")
