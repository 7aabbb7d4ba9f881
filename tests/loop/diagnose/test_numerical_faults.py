"""Numerical faults: each with the code, the variable, the step and the remedy that the outcome must name.

Steps are those at which a plain NumPy loop over the same recurrence breaks.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.loop.finite import risen
from run_options import with_options

X0, Y0 = jnp.ones(2), jnp.zeros(2)
Q = bl.problems.quadratic(kappa=4.0)
STEP = 1 / Q.L
LARGEST = np.finfo(np.float64).max


def g(x, y):
    return jnp.sum((y - x) ** 2)  # ∇²_yy g = 2I: plain steps on y and v must stay below 1


def f(x, y):
    return 0.5 * jnp.sum((y - 2) ** 2)


@cache
def plain() -> bl.Problem:
    return bl.Problem(inner=g, outer=f)


def breaks_at(alpha: float, eta: float, beta: float, dtype=np.float64) -> int:
    """AID on f and g by hand, until f(x_k, ŷ_k) or a variable overflows: the number of good steps."""
    alpha, eta, beta = (dtype(c) for c in (alpha, eta, beta))
    x, y, v, two = np.ones(2, dtype), np.zeros(2, dtype), np.zeros(2, dtype), dtype(2)
    with np.errstate(all="ignore"):
        for k in range(10_000):
            y = y - alpha * two * (y - x)
            v = v - eta * (two * v - (y - two))
            x = x - beta * two * v
            if not np.all(np.isfinite([*x, *y, *v, dtype(0.5) * np.sum((y - two) ** 2)])):
                return k
    raise AssertionError("it does not break")


def check(result, code, variable, step, *words, never=()):
    assert result.status.code is code, result.status
    assert result.status.variable == variable, result.status
    assert result.status.step == step, result.status
    for word in words:
        assert word in result.status.message
    for word in never:
        assert word not in result.status.message
    if code is bl.Code.DIVERGED:
        assert len(next(iter(result.trace.values()), ())) == result.steps
        for leaf in jax.tree.leaves((result.x, result.y, result.state)):
            assert np.all(np.isfinite(leaf)), "the state that is returned is not finite"


# Objectives


@cache
def spoiled_after(steps: int, bad: float) -> bl.Problem:
    """Whose f is `bad` from the step with this number on, everything else staying finite."""
    table = jnp.where(jnp.arange(100) < steps, 0.0, bad)
    return bl.Problem(
        inner=Q.g, outer=lambda x, y, *, rows: Q.f(x, y) + jax.lax.stop_gradient(table[rows[0]])
    )


def numbered(steps: int = 100):
    return [bl.Batch(rows=bl.Levels(None, jnp.array([k]))) for k in range(steps)]


@pytest.mark.slow
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
@pytest.mark.parametrize("every", [None, 1, 4, 50])
def test_f_is_not_finite_while_the_variables_are(bad, every):
    solver = bl.aid(spoiled_after(7, bad), inner=STEP, adjoint=STEP, outer=0.1)
    result = bl.run(solver, X0, Y0, data=numbered(), steps=50, options=bl.RunOptions(every=every), tol=1e-9)
    check(
        result,
        bl.Code.DIVERGED,
        "outer_value",
        7,
        "the outer objective's value became infinite or NaN at step 7",
        "the outer objective f is NaN or infinite at that state",
        never=["lower"],  # no step size is to blame
    )
    clean = bl.run(bl.aid(Q.problem, inner=STEP, adjoint=STEP, outer=0.1), X0, Y0, steps=7)
    np.testing.assert_allclose(result.x, clean.x, rtol=1e-12)


@pytest.mark.slow
def test_f_is_nan_beyond_an_edge_that_x_crosses():
    """No gradient sees it, so x, y and v stay finite for ever."""
    edge = lambda x, y: f(x, y) + jnp.where(jax.lax.stop_gradient(x[0]) > 1.05, jnp.nan, 0.0)
    result = bl.run(
        bl.aid(bl.Problem(inner=g, outer=edge), inner=0.5, adjoint=0.5, outer=0.1), X0, Y0, steps=200
    )
    x, y, v, k = 1.0, 0.0, 0.0, 0
    while x <= 1.05:
        y, k = y - 0.5 * 2 * (y - x), k + 1
        v = v - 0.5 * (2 * v - (y - 2))
        x = x - 0.1 * 2 * v
    check(result, bl.Code.DIVERGED, "outer_value", k, "the outer objective f is NaN", never=["lower"])


@pytest.mark.slow
def test_f_is_infinite_from_the_start_and_no_tolerance_calls_that_converged():
    outer = lambda x, y: f(x, y) + jnp.inf
    solver = bl.aid(bl.Problem(inner=g, outer=outer), inner=0.5, adjoint=0.5, outer=0.1)
    result = bl.run(solver, X0, Y0, steps=2000, tol=1e-3)
    check(result, bl.Code.DIVERGED, "outer_value", 0, "the outer objective f is NaN", "scale it down")
    assert result.trace["outer_value"].shape == (0,)  # no step was good


@pytest.mark.slow
def test_the_gradient_of_f_is_nan_where_f_is_not():
    """A root at zero: the value is 0, the derivative is not there."""
    rooted = lambda x, y: f(x, y) + jnp.sqrt(jnp.sum((x - 1) ** 2))
    result = bl.run(
        bl.aid(bl.Problem(inner=g, outer=rooted), inner=0.3, adjoint=0.3, outer=0.5), X0, Y0, steps=50
    )
    words = "the gradient of the outer objective f, though not its value,", "a root"
    check(result, bl.Code.DIVERGED, "x", 0, *words, never=["lower"])


@pytest.mark.slow
def test_g_is_nan_beyond_an_edge_that_y_crosses():
    """y tends to 1 by y ← y + 0.2(1 − y), and a root in g ends at 0.9: the step from beyond it is NaN."""
    ends = lambda x, y: g(jnp.ones(2), y) + 1e-12 * jnp.sum(jnp.sqrt(0.9 - y)) + 0 * jnp.sum(x)
    result = bl.run(
        bl.aid(bl.Problem(inner=ends, outer=f), inner=0.1, adjoint=0.1, outer=1e-9), X0, Y0, steps=100
    )
    y, k = 0.0, 0
    while y < 0.9:
        y, k = y + 0.2 * (1 - y), k + 1
    # The step that crosses breaks v, whose system is that of the new y.
    words = "v became infinite", "g is NaN or infinite at the y of its next step", "keep x and y away"
    check(result, bl.Code.DIVERGED, "v", k - 1, *words, never=["lower"])


@pytest.mark.slow
def test_g_s_gradient_is_nan_from_the_start():
    """`where` lets the NaN of the branch not taken through its derivative: the classic."""
    trap = lambda x, y: g(x, y) + jnp.sum(jnp.where(y > 0, jnp.sqrt(y), 0.0))
    result = bl.run(
        bl.aid(bl.Problem(inner=trap, outer=f), inner=0.1, adjoint=0.1, outer=0.1), X0, -1 - Y0, steps=20
    )
    words = "the gradient of the inner objective g, though not its value,", "keep x and y away"
    check(result, bl.Code.DIVERGED, "x", 0, "x and y and v became", *words, never=["lower"])


SECOND_ORDER = {
    "aid": lambda problem: bl.aid(problem, inner=0.5, adjoint=0.5, outer=0.1),
    "cg": lambda problem: bl.aid(problem, inner=0.5, adjoint=bl.adjoints.cg(), outer=0.1),
    "minres": lambda problem: bl.aid(problem, inner=0.5, adjoint=bl.adjoints.minres(), outer=0.1),
    "quasi-Newton": lambda problem: bl.aid(problem, inner=0.5, adjoint=bl.adjoints.quasi_newton(), outer=0.1),
    "hoag": lambda problem: bl.hoag(problem, inner=0.5, outer=0.1),
    "itd": lambda problem: bl.itd(problem, inner=0.5, outer=0.1, inner_steps=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", SECOND_ORDER)
def test_a_second_derivative_of_g_that_is_not_there_is_named(method):
    """|y|^1.5 has the derivative 0 at 0, and no second one; there y rests."""
    kinked = lambda x, y: 0.5 * jnp.sum((y - x) ** 2) + 0.1 * jnp.sum(jnp.abs(y) ** 1.5)
    solver = SECOND_ORDER[method](bl.Problem(inner=kinked, outer=f))
    words = "a second derivative of the inner objective g, though not its gradient, is NaN or infinite at that state"
    for policy in ("stop", "halve"):
        result = bl.run(solver, Y0, Y0, steps=20, options=bl.RunOptions(on_divergence=policy))
        check(result, bl.Code.DIVERGED, "x", 0, words, "smaller steps cannot help", never=["lower"])
        assert result.halvings == ()


# Data


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "loader"])
def test_infinities_that_the_objectives_leave_out_are_not_blamed(kind):
    """As in a mask: the step is too large, and halving it mends that."""
    masked = lambda x, y, m: g(x, y) + jnp.sum(jnp.where(jnp.isinf(m), 0.0, m))
    mask = bl.Batch(inner=jnp.array([0.0, -jnp.inf]))
    data, solver = (
        mask if kind == "whole" else [mask] * 1200,
        bl.aid(bl.Problem(inner=masked, outer=f), inner=1.5, adjoint=0.4, outer=0.1),
    )
    for options in (dict(steps=800), dict(steps=5, warmup=700), dict(steps=5, warmup=1100)):
        result = bl.run(solver, X0, Y0, data=data, **with_options(options))
        check(
            result,
            bl.Code.DIVERGED,
            "y",
            result.status.step,
            "the inner step size",
            never=["clean the data"],
        )
    mended = bl.run(solver, X0, Y0, data=data, steps=800, options=bl.RunOptions(on_divergence="halve"))
    assert (mended.status.code, len(mended.halvings)) == (bl.Code.COMPLETED, 1)


def ridge() -> bl.Problem:
    return bl.Problem(
        inner=lambda x, y, rows: jnp.mean((rows["a"] @ y - 1.0) ** 2) + jnp.sum(x * y**2),
        outer=lambda x, y: jnp.sum(y**2),
    )


def spoiled_rows():
    a = np.random.default_rng(0).normal(size=(20, 2))
    a[13, 1] = np.nan
    return a


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", pytest.param("stream", marks=pytest.mark.slow), "loader"])
def test_nan_in_the_data_in_a_batch_of_a_stream_and_of_a_loader(kind):
    a = spoiled_rows()
    data = lambda rows: {
        "whole": lambda: bl.Batch(inner=rows),
        "stream": lambda: bl.epochs(bl.Batch(inner=rows), 5),
        "loader": lambda: [
            bl.Batch(inner={name: v[5 * k : 5 * k + 5] for name, v in rows.items()}) for k in range(4)
        ],
    }[kind]()
    solver, marks = bl.itd(ridge(), inner=0.01, outer=0.01), np.isnan(a)
    result = bl.run(solver, X0, Y0, data=data({"a": a, "mark": marks}), steps=4)
    record = lambda state, info, batch: {"met": jnp.any(batch.inner["mark"])}
    clean = bl.run(
        solver, X0, Y0, data=data({"a": np.where(marks, 0, a), "mark": marks}), steps=4, record=record
    )
    step = int(np.argmax(clean.trace["met"]))  # in the same order
    assert clean.trace["met"].sum() == (4 if kind == "whole" else 1)
    words = "the data contain NaN or infinity (1 of", "entries of inner['a'])", "clean the data"
    check(result, bl.Code.DIVERGED, "x", step, *words, never=["step size"])


@pytest.mark.slow
def test_nan_in_the_data_of_the_warm_up():
    a = spoiled_rows()
    loader = [bl.Batch(inner={"a": a[5 * k : 5 * k + 5]}) for k in range(4)]
    result = bl.run(bl.itd(ridge(), inner=0.01, outer=0.01), X0, Y0, data=loader, steps=1, warmup=3)
    check(result, bl.Code.DIVERGED, "y", 2, "at warm-up step 2", "the data contain NaN", "clean the data")
    assert result.steps == 0


# Warm-up


@pytest.mark.slow
def test_a_warm_up_that_diverges_has_its_own_status_and_returns_a_finite_state():
    solver = bl.aid(Q.problem, inner=50 * STEP, adjoint=STEP, outer=0.1)
    result = bl.run(solver, X0, Y0, steps=10, warmup=1000)
    y, k = np.zeros(2), 0
    gradient = jax.jit(jax.grad(Q.g, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        while np.all(np.isfinite(after := y - 50 * STEP * np.asarray(gradient(X0, y)))):
            y, k = after, k + 1
    assert abs(result.status.step - k) <= 1
    words = f"at warm-up step {result.status.step}", "the inner step size", f"2/L = {2 * STEP:.3g}"
    check(result, bl.Code.DIVERGED, "y", result.status.step, *words, never=["outer"])
    assert result.steps == 0


@pytest.mark.slow
@pytest.mark.parametrize("steps", [12, 400])
@pytest.mark.parametrize("kind", ["whole", "loader"])
def test_a_warm_up_that_diverges_returns_the_state_before_it(steps, kind):
    """After 12 steps y is 50^12, still finite in float32; its square is not."""
    problem = bl.Problem(inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y**2))
    start = jnp.ones(2, jnp.float32), jnp.zeros(2, jnp.float32)
    data = lambda: {"whole": None, "loader": bl.loaders(outer=[jnp.ones(1, jnp.float32)] * 3)}[kind]
    if kind == "loader":
        problem = bl.Problem(inner=problem.inner, outer=lambda x, y, ones: jnp.sum(y**2) * ones[0])
    wild, calm = (
        bl.aid(problem, inner=51.0, adjoint=0.5, outer=0.1),
        bl.aid(problem, inner=0.5, adjoint=0.5, outer=0.1),
    )
    result = bl.run(wild, *start, data=data(), steps=10, warmup=steps)
    words = "the state from before the warm-up is returned", "the inner step size"
    what = "y grew until its square overflows" if steps == 12 else "y became infinite or NaN"
    check(result, bl.Code.DIVERGED, "y", result.status.step, f"{what} at warm-up step", *words)
    assert (result.steps, result.status.step == 12) == (0, steps == 12)
    np.testing.assert_array_equal(result.y, start[1])
    np.testing.assert_array_equal(result.x, start[0])
    resumed = bl.run(calm, data=data(), steps=30, resume=result)
    np.testing.assert_array_equal(resumed.x, bl.run(calm, *start, data=data(), steps=30).x)
    halved = bl.run(
        wild, *start, data=data(), steps=10, warmup=steps, options=bl.RunOptions(on_divergence="halve")
    )
    assert (halved.status.code, halved.halvings[-1][1]) == (bl.Code.COMPLETED, 2**-5)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [12, 400])
def test_lanes_whose_warm_up_diverges_stay_at_their_start(steps):
    problem = bl.Problem(inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y**2))
    start = jnp.ones(2, jnp.float32), jnp.full(2, 3.0, jnp.float32)
    solvers = [bl.aid(problem, inner=rate, adjoint=0.5, outer=0.1) for rate in (51.0, 0.5)]
    swept = bl.sweep(solvers, *start, steps=10, warmup=steps)
    alone = bl.run(solvers[0], *start, steps=10, warmup=steps)
    assert [status.code for status in swept.status] == [bl.Code.DIVERGED, bl.Code.COMPLETED]
    np.testing.assert_array_equal(swept[0].y, start[1])
    what = "y grew until its square overflows" if steps == 12 else "y became infinite or NaN"
    assert f"{what} at warm-up step {alone.status.step}; the state from before" in swept.status[0].message
    assert (swept.status[0].variable, swept.status[0].step) == (alone.status.variable, alone.status.step)
    calm = bl.run(solvers[1], *start, steps=10, warmup=steps)
    np.testing.assert_allclose(swept[1].x, calm.x, rtol=1e-6)


@pytest.mark.slow
def test_a_warm_up_that_diverges_faster_than_any_power_returns_a_finite_state():
    """y⁴ with a step of 10."""
    problem = bl.Problem(inner=lambda x, y: jnp.sum(y**4) + jnp.sum(x * y), outer=f)
    result = bl.run(bl.aid(problem, inner=10.0, adjoint=0.1, outer=0.1), X0, X0, steps=20, warmup=50)
    y, k = 1.0, 0
    while abs(y - 10 * (4 * y**3 + 1)) < 1e102:  # whose cube is finite, so that the next one is
        y, k = y - 10 * (4 * y**3 + 1), k + 1
    check(result, bl.Code.DIVERGED, "y", result.status.step, "the inner step size 10", never=["outer"])
    assert abs(result.status.step - k) <= 2
    calm = bl.run(bl.aid(problem, inner=0.01, adjoint=0.1, outer=0.01), x0=X0, y0=jnp.ones(2), steps=5)
    assert calm.status.code is bl.Code.COMPLETED


# Overflow


@pytest.mark.slow
@pytest.mark.parametrize("rule", [optax.rmsprop(1e-3), optax.adam(1e-3)], ids=["rmsprop", "adam"])
def test_an_optimizer_s_memory_that_overflows_is_named(rule):
    """The second moment is infinite, so its steps are zero: x, y and the loss stay finite for ever."""
    outer = lambda x, y: jnp.float32(1e25) * jnp.sum(x) + 0 * jnp.sum(y)
    x0 = jnp.ones(2, jnp.float32)
    solver = bl.itd(bl.Problem(inner=g, outer=outer), inner=0.1, outer=rule)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam is not strict
        result = bl.run(solver, x0, jnp.zeros(2, jnp.float32), steps=20)
    assert result.status.code is bl.Code.DIVERGED
    assert (result.status.variable, result.status.step) == ("memory of the outer rule", 0)
    assert (
        "clip its gradients (optax.clip_by_global_norm), or lower the outer step size"
        in result.status.message
    )
    np.testing.assert_array_equal(result.x, x0)


@pytest.mark.slow
def test_a_hypergradient_too_large_for_its_own_norm_ends_the_run():
    """1e25 in float32: its square is infinite, so the method's accumulators are, and its steps would be zero."""
    outer = lambda x, y: jnp.float32(1e25) * jnp.sum(x) + 0 * jnp.sum(y)
    x0 = jnp.ones(2, jnp.float32)
    result = bl.run(bl.solvers.s_tfbo(bl.Problem(inner=g, outer=outer)), x0, x0, steps=20)
    check(result, bl.Code.DIVERGED, "alpha_squared", 0, "alpha_squared became infinite", "scale the losses")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all the data", "one batch"])
def test_nan_ends_a_method_that_works_to_a_tolerance(kind):
    """HOAG's inner loop ends at ‖∇_y g‖ ≤ ε, and NaN is not above it."""
    problem = bl.Problem(inner=lambda x, y, c: g(x, y) * jnp.mean(c), outer=f)
    batches = [bl.Batch(inner=jnp.full(3, jnp.nan if k == 4 else 1.0)) for k in range(9)]
    data, step = (batches[4], 0) if kind == "all the data" else (batches, 4)
    result = bl.run(bl.hoag(problem, inner=0.3, outer=0.1), X0, Y0, data=data, steps=9)
    check(result, bl.Code.DIVERGED, "x", step, "x and y and v became", "the data contain NaN")


@pytest.mark.slow
def test_float16_overflows():
    """Σ(y − 10)² = 200 at the start, times 1000: beyond 65,504, though no variable is large."""
    outer = lambda x, y: 1e3 * jnp.sum((y - 10) ** 2)
    x0, y0 = X0.astype(jnp.float16), Y0.astype(jnp.float16)
    solver = bl.aid(bl.Problem(inner=g, outer=outer), inner=0.01, adjoint=0.01, outer=1e-6)
    result = bl.run(solver, x0, y0, steps=20)
    words = (
        "f is NaN or infinite",
        "too large for float16",
        "float16 holds nothing above 65,504",
        "scale it down",
    )
    check(result, bl.Code.DIVERGED, result.status.variable, 0, *words, never=["lower"])
    assert result.status.variable in ("x", "v", "outer_value")


@pytest.mark.slow
def test_float32_overflows():
    outer = lambda x, y: jnp.float32(1e37) * jnp.sum((y - 10) ** 2)
    x0, y0 = X0.astype(jnp.float32), Y0.astype(jnp.float32)
    solver = bl.aid(bl.Problem(inner=g, outer=outer), inner=0.01, adjoint=0.01, outer=1e-39)
    result = bl.run(solver, x0, y0, steps=20)
    words = "the outer objective f is NaN or infinite", "too large for float32", "scale it down"
    check(result, bl.Code.DIVERGED, "outer_value", 0, *words, never=["lower", "float16"])


# Steps too large


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("level", "variable", "steps"),
    [
        ("inner", "y", (3.0, 0.1, 0.01)),
        ("adjoint", "v", (0.1, 3.0, 0.01)),
        ("outer", "x", (0.5, 0.5, 30.0)),
    ],
)
def test_a_step_far_too_large_at_each_level(level, variable, steps, dtype):
    x0, y0 = X0.astype(dtype), Y0.astype(dtype)
    result = bl.run(bl.aid(plain(), inner=steps[0], adjoint=steps[1], outer=steps[2]), x0, y0, steps=10_000)
    words = ["lower the outer"]
    if level != "outer":  # the others are measured against the curvature of g, which is 2
        words = [f"the {level} step size 3 is above 2/L = 1, with L = 2", "Lower it to 1/L = 0.5"]
    check(result, bl.Code.DIVERGED, variable, breaks_at(*steps, dtype), *words)


@pytest.mark.slow
def test_a_step_too_large_on_a_loader_s_batches_is_measured_too():
    solver = bl.aid(
        bl.Problem(inner=lambda x, y, c: g(x, y) + 0 * jnp.sum(c), outer=f),
        inner=3.0,
        adjoint=0.1,
        outer=0.01,
    )
    result = bl.run(solver, X0, Y0, data=[bl.Batch(inner=jnp.ones(1))] * 400, steps=400)
    step = breaks_at(3.0, 0.1, 0.01)
    check(result, bl.Code.DIVERGED, "y", step, "the inner step size 3 is above 2/L = 1")
    assert "outer one" not in result.status.message  # the measure leaves no doubt


@pytest.mark.slow
@pytest.mark.parametrize("level", ["inner", "adjoint"])
def test_a_step_only_just_too_large_is_measured_among_many_eigenvalues(level):
    """Curvatures 1, …, 10 in 30 directions, near enough to each other that the power method is still at 9.9."""
    curvatures = np.linspace(1, 10, 30)
    turned, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(30, 30)))
    H = jnp.asarray((turned * curvatures) @ turned.T)
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * y @ (H @ y) - jnp.sum(y) * jnp.sum(x),
        outer=lambda x, y: 0.5 * jnp.sum((y - 1) ** 2),
    )
    small, large = 0.01, 1.01 * 2 / 10
    sizes = {"inner": small, "adjoint": small, "outer": 1e-6} | {level: large}
    solver = bl.aid(problem, **sizes)
    result = bl.run(solver, jnp.ones(1), jnp.zeros(30), steps=60_000)
    variable, words = (
        {"inner": "y", "adjoint": "v"}[level],
        f"the {level} step size {large:.3g} is above 2/L = 0.2,",
    )
    check(result, bl.Code.DIVERGED, variable, result.status.step, words, "lower the outer step size")


# Curvature


@pytest.mark.slow
def test_negative_curvature_met_by_conjugate_gradients():
    """∇²_yy g = −2I: the first direction ends them, v stays zero, and x never moves."""
    problem = bl.Problem(inner=lambda x, y: -g(x, y), outer=f)
    result = bl.run(bl.aid(problem, inner=1e-6, adjoint=bl.adjoints.cg(), outer=0.1), X0, Y0, steps=40)
    words = (
        "does not curve upwards, in 100% of the last 20 steps",
        "bl.adjoints.minres()",
        "bl.adjoints.damped",
    )
    check(result, bl.Code.COMPLETED, None, None, *words)
    assert result.trace["adjoint_indefinite"].all()
    np.testing.assert_array_equal(result.x, X0)
    mended = bl.run(bl.aid(problem, inner=1e-6, adjoint=bl.adjoints.minres(), outer=0.1), X0, Y0, steps=40)
    assert "curve" not in mended.status.message
    np.testing.assert_allclose(mended.state.v, -0.5 * (mended.y - 2), rtol=1e-6)  # −2v = ∇_y f


@pytest.mark.slow
def test_negative_curvature_met_by_hoag():
    problem = bl.Problem(inner=lambda x, y: -g(x, y), outer=f)
    result = bl.run(bl.hoag(problem, inner=1e-6, outer=0.1, max_inner_steps=1), X0, Y0, steps=40)
    check(result, bl.Code.COMPLETED, None, None, "does not curve upwards", "Pass a larger damping=")


@pytest.mark.slow
def test_negative_curvature_that_ends_in_divergence_is_blamed_for_it():
    problem = bl.Problem(inner=lambda x, y: -g(x, y), outer=f)
    result = bl.run(bl.aid(problem, inner=1.0, adjoint=bl.adjoints.cg(), outer=1.0), X0, Y0, steps=1000)
    y, k = 0.0, 0
    while abs(y) < (LARGEST / 2) ** 0.5:  # x stays 1, and y − 1 grows threefold a step
        y, k = y + 2 * (y - 1), k + 1
    check(result, bl.Code.DIVERGED, "y", k - 1, "does not curve upwards", "minres", never=["lower"])


@pytest.mark.slow
def test_a_singular_hessian():
    """g does not see y₁ and f does: no v solves the system, and conjugate gradients end at the flat direction."""
    problem = bl.Problem(inner=lambda x, y: (y[0] - x[0]) ** 2, outer=f)
    result = bl.run(bl.aid(problem, inner=0.1, adjoint=bl.adjoints.cg(), outer=0.01), X0, Y0, steps=40)
    words = "∇²_yy g is not positive definite", "add a ridge to g"
    check(result, bl.Code.COMPLETED, None, None, *words)
    ridged = bl.Problem(inner=lambda x, y: (y[0] - x[0]) ** 2 + 1e-3 * y[1] ** 2, outer=f)
    mended = bl.run(bl.aid(ridged, inner=0.1, adjoint=bl.adjoints.cg(), outer=0.01), X0, Y0, steps=40)
    assert "positive definite" not in mended.status.message
    assert not mended.trace["adjoint_indefinite"].any()


def test_a_solve_that_meets_its_limit_is_said():
    """‖y − x‖ falls by 0.9 a step: to 1e-3 of itself in 66 of them, and conjugate gradients need one."""
    near = bl.Problem(inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=f)
    make = lambda **more: bl.hoag(near, inner=0.1, outer=0.01, tol=lambda k: 1e-3 + 0 * k, **more)
    result = bl.run(make(max_inner_steps=5), X0, Y0, steps=4)
    words = "In 2 of the last 2 steps the inner solve took all of its max_inner_steps=5", "raise that limit"
    check(result, bl.Code.COMPLETED, None, None, *words, never=["adjoint solve"])
    assert "took all of" not in bl.run(make(), X0, Y0, steps=4).status.message


# Finite, but not fine


@pytest.mark.slow
def test_a_finite_blow_up_is_said():
    wavy = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2),
        outer=lambda x, y: jnp.sum(jnp.sqrt(1 + (10 * y) ** 2)),
    )
    result = bl.run(bl.aid(wavy, inner=1.0, adjoint=1.0, outer=50.0), 0.1 * X0, 0.1 * X0, steps=40)
    check(result, bl.Code.COMPLETED, None, None, "finite blow-up: as from step sizes that are too large")
    calm = bl.run(bl.aid(wavy, inner=1.0, adjoint=1.0, outer=1e-3), 0.1 * X0, 0.1 * X0, steps=40)
    assert "blow-up" not in calm.status.message


def test_a_rise_is_seen_through_the_noise_of_batches_and_noise_is_no_rise():
    noise = np.random.default_rng(0).chisquare(1, size=(50, 400))  # as of batches of one row
    growth = 1e4 ** np.linspace(0, 1, 400)
    assert all(risen(values * growth, 400) for values in noise)
    fallen = np.where(np.arange(400) < 100, 3.0, 0.1 * growth)  # first far down, then above where it began
    assert all(risen(values * fallen, 400) for values in noise)
    assert (
        sum(risen(values, 400) is not None for values in noise) <= 2
    )  # where the first of all is next to nothing
    assert not any(risen(values / growth, 400) for values in noise)
    settling = 1 - 0.8 * np.exp(-np.arange(400) / 40)  # as y comes to rest
    assert risen(settling, 400) is None
    left = 1 - 0.99 * np.exp(-np.arange(400) / 20)  # as y leaves a y0 that suited f, and x follows
    assert risen(left * np.exp(-np.arange(400) / 200), 400) is None


@pytest.mark.slow
def test_a_stall_is_said_and_so_is_a_gradient_of_exactly_zero():
    frozen = bl.aid(Q.problem, inner=STEP, adjoint=STEP, outer=1e-30)
    result = bl.run(frozen, X0, Y0, steps=50)
    check(result, bl.Code.COMPLETED, None, None, "no longer moved x", "outer steps are too small")
    blind = bl.Problem(inner=lambda x, y: jnp.sum(y**2), outer=lambda x, y: jnp.sum((y - 1) ** 2))
    result = bl.run(bl.aid(blind, inner=0.1, adjoint=0.1, outer=0.1), X0, Y0, steps=50)
    check(
        result,
        bl.Code.COMPLETED,
        None,
        None,
        "exactly zero at every step. Does f depend on x, or ∇_y g on x, at all?",
    )
    moving = bl.run(bl.aid(Q.problem, inner=STEP, adjoint=STEP, outer=1e-3), X0, Y0, steps=50)
    assert "no longer moved" not in moving.status.message
