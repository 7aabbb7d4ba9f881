"""Many runs at once are the runs one by one; the best is marked, and a broken one breaks no other."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl

X0, Y0 = jnp.ones(2), jnp.zeros(2)
Q = bl.problems.quadratic(kappa=4.0)


def aid(beta):
    return bl.aid(Q.problem, inner=1 / Q.L, adjoint=1 / Q.L, outer=beta)


def regression():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(24, 3))
    data = bl.Batch(inner=(a, a.sum(axis=1)), outer=(a[:8], a[:8].sum(axis=1)))
    error = lambda y, rows: jnp.mean((rows[0] @ y - rows[1]) ** 2)

    def inner(x, y, rows, *, key):
        noise = 0.01 * jax.random.normal(key, y.shape, y.dtype)
        return error(y + noise, rows) + jnp.sum(jnp.exp(x) * y**2)

    return bl.Problem(inner=inner, outer=lambda x, y, rows: (error(y, rows), {"size": jnp.sum(y**2)})), data


@pytest.mark.slow
def test_step_sizes_as_one_by_one_the_best_marked_and_divergence_contained():
    betas = [1e-3, 1e-2, 0.1, 1e3]
    swept = bl.sweep([aid(beta) for beta in betas], X0, Y0, steps=300, metric="hypergradient_norm")
    assert len(swept) == 4
    assert [lane.solver for lane in swept.lanes] == [0, 1, 2, 3]
    for i, beta in enumerate(betas):
        alone = bl.run(aid(beta), X0, Y0, steps=300)
        assert swept.steps[i] == alone.steps
        assert swept.status[i].code is alone.status.code
        np.testing.assert_allclose(swept[i].x, alone.x, rtol=1e-9)
        np.testing.assert_allclose(swept[i].trace["outer_value"], alone.trace["outer_value"], rtol=1e-9)
    assert swept.status[3].code is bl.Code.DIVERGED
    assert "lower the outer" in swept.status[3].message
    assert np.isnan(swept.scores[3])
    assert np.all(np.isfinite(swept[3].x))
    distances = [np.linalg.norm(swept[i].x - Q.solution) for i in range(3)]
    assert swept.best == int(np.argmin(distances)) == 2
    assert "best is lane 2" in repr(swept)


def test_a_lane_that_diverges_does_not_clear_the_inner_step_size():
    """v and x overflow first, because y grows."""
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 2.0) ** 2)
    )
    solvers = [bl.aid(problem, inner=inner, adjoint=0.5, outer=0.1) for inner in (0.5, 3.0)]
    x = jnp.ones(2, jnp.float32)
    status = bl.sweep(solvers, x, 0 * x, steps=200)[1].status
    assert "v and x became infinite" in status.message
    assert "lower the inner or adjoint or outer step size" in status.message


@pytest.mark.slow
def test_a_lane_is_a_result_that_run_can_resume():
    swept = bl.sweep([aid(0.01), aid(0.1)], X0, Y0, steps=40)
    resumed = bl.run(aid(0.1), steps=60, resume=swept[1])
    whole = bl.run(aid(0.1), X0, Y0, steps=100)
    np.testing.assert_allclose(resumed.x, whole.x, rtol=1e-10)
    assert resumed.steps == len(resumed.trace["outer_value"]) == 100


@pytest.mark.slow
def test_seeds_and_starts_and_data_orders_by_product():
    problem, data = regression()
    solver = bl.aid(problem, inner=0.05, adjoint=0.05, outer=0.1)
    starts = [(jnp.zeros(3), jnp.zeros(3)), (jnp.full(3, -2.0), jnp.ones(3))]
    order = lambda seed: bl.epochs(data, 4, seed=seed)
    swept = bl.sweep(
        solver, starts=starts, data=order, seeds=[0, 7], steps=20, metric="outer/size", mode="max"
    )
    assert [(lane.start, lane.seed) for lane in swept.lanes] == [(0, 0), (0, 7), (1, 0), (1, 7)]
    for lane, result in zip(swept.lanes, (swept[i] for i in range(4)), strict=True):
        x0, y0 = starts[lane.start]
        alone = bl.run(solver, x0, y0, data=order(lane.seed), seed=lane.seed, steps=20)
        np.testing.assert_allclose(result.x, alone.x, rtol=1e-9)
        np.testing.assert_allclose(result.trace["outer/size"], alone.trace["outer/size"], rtol=1e-9)
    assert swept.best == int(np.argmax(swept.scores))


@pytest.mark.slow
def test_zip_pairs_the_lists_and_data_may_differ_by_lane():
    problem, data = regression()
    shifted = bl.Batch(inner=(data.inner[0], data.inner[1] + 1.0), outer=data.outer)
    solvers = [bl.aid(problem, inner=0.05, adjoint=0.05, outer=beta) for beta in (0.1, 0.2)]
    swept = bl.sweep(solvers, jnp.zeros(3), jnp.zeros(3), data=[data, shifted], steps=15, combine="zip")
    for i, (solver, batch) in enumerate(zip(solvers, (data, shifted), strict=True)):
        alone = bl.run(solver, jnp.zeros(3), jnp.zeros(3), data=batch, steps=15)
        np.testing.assert_allclose(swept[i].x, alone.x, rtol=1e-9)


@pytest.mark.slow
def test_injected_optax_hyperparameters_are_swept_and_do_not_recompile():
    traces = []

    def outer(x, y):
        traces.append(1)
        return Q.f(x, y)

    problem = bl.Problem(inner=Q.g, outer=outer)
    make = lambda rate: bl.aid(
        problem, inner=1 / Q.L, adjoint=1 / Q.L, outer=optax.inject_hyperparams(optax.sgd)(rate, momentum=0.5)
    )
    swept = bl.sweep([make(rate) for rate in (0.01, 0.05)], X0, Y0, steps=30)
    first = bl.run(make(0.01), X0, Y0, steps=30)
    before = len(traces)
    second = bl.run(make(0.05), X0, Y0, steps=30)
    assert len(traces) == before
    for i, alone in enumerate((first, second)):
        np.testing.assert_allclose(swept[i].x, alone.x, rtol=1e-9)
    assert not np.array_equal(first.x, second.x)
    same = [
        bl.run(
            bl.aid(problem, inner=1 / Q.L, adjoint=1 / Q.L, outer=optax.sgd(0.01, momentum=0.5)),
            X0,
            Y0,
            steps=30,
        )
        for _ in "ab"
    ]
    np.testing.assert_allclose(same[0].x, first.x, rtol=1e-12)
    built_once = len(traces)
    bl.run(
        bl.aid(problem, inner=1 / Q.L, adjoint=1 / Q.L, outer=optax.sgd(0.01, momentum=0.5)), X0, Y0, steps=30
    )
    assert len(traces) == built_once  # a rule made again the same way is the same rule


@pytest.mark.slow
def test_hooks_see_all_lanes_and_may_stop_them():
    seen = []

    def hook(event):
        seen.append(event.trace["outer_value"].shape)
        return bl.hooks.Stop("enough") if event.step >= 20 else None

    swept = bl.sweep([aid(0.01), aid(0.1)], X0, Y0, steps=100, every=10, hooks=[hook])
    assert seen == [(2, 10), (2, 10)]
    assert swept.trace["outer_value"].shape == (2, 20)
    assert all(status.code is bl.Code.STOPPED for status in swept.status)


@pytest.mark.slow
def test_a_metric_may_be_a_function_of_x_and_y():
    swept = bl.sweep(
        [aid(0.01), aid(0.1)], X0, Y0, steps=50, metric=lambda x, y: jnp.linalg.norm(x - Q.solution)
    )
    np.testing.assert_allclose(swept.scores, [np.linalg.norm(swept[i].x - Q.solution) for i in range(2)])


@pytest.mark.slow
def test_warm_up_comes_first_in_every_lane():
    swept = bl.sweep([aid(0.01), aid(0.1)], X0, Y0, steps=10, warmup=30)
    alone = bl.run(aid(0.1), X0, Y0, steps=10, warmup=30)
    np.testing.assert_allclose(swept[1].x, alone.x, rtol=1e-10)


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (dict(solvers=[]), TypeError, "a solver such as"),
        (
            dict(solvers=[aid(0.1), bl.itd(Q.problem, inner=0.1, outer=0.1)]),
            ValueError,
            "differ in their numbers only",
        ),
        (dict(solvers=aid(0.1), x0=None), ValueError, "needs a start"),
        (dict(solvers=aid(0.1), starts=[(X0, Y0)]), ValueError, "not both"),
        (dict(solvers=aid(0.1), combine="all"), ValueError, '"product" or "zip"'),
        (
            dict(solvers=[aid(0.1), aid(0.2)], seeds=[1, 2, 3], combine="zip"),
            ValueError,
            "lists of one length",
        ),
        (
            dict(solvers=aid(0.1), metric="accuracy"),
            ValueError,
            "choose from adjoint_residual, hypergradient_norm, outer_value",
        ),
        (dict(solvers=aid(0.1), mode="least"), ValueError, '"min" or "max"'),
        (dict(solvers=aid(0.1), steps=0), ValueError, "steps must be"),
        (dict(solvers=aid(0.1), seeds=[-1]), ValueError, "seed must be"),
        (
            dict(solvers=aid(0.1), starts=[(X0, Y0), (jnp.ones(3), Y0)], x0=None, y0=None),
            ValueError,
            "same shapes",
        ),
        (dict(solvers=aid(0.1), data=iter([])), TypeError, "no loader|bl.Batch or a stream"),
    ],
)
def test_bad_input(arguments, error, words):
    with pytest.raises(error, match=words):
        bl.sweep(**({"x0": X0, "y0": Y0, "steps": 3} | arguments))
