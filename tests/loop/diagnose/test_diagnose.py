"""What `diagnose=True` measures agrees with closed forms, and what it says is so: each finding fires, and none else.

    g = ½yᵀHy − xᵀBy,   f = ½‖y − t‖² + ½γ‖x‖²:   y* = H⁻¹Bᵀx,   v* = H⁻¹(y − t),   ∇Φ = γx + B v*

H and the rest are data, so that all AID runs here share their programs.
"""

import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.counting import counted, counting, oracle_calls
from bilevel.loop.diagnose.findings import Evidence, Record, findings
from bilevel.loop.diagnose.measurements import LANCZOS, Point, close_look
from bilevel.loop.diagnose.report import Diagnosis, Finding
from bilevel.loop.diagnose.steps import plain_step
from bilevel.solvers.rules import as_rule
from run_options import with_options
from zoo import PROBLEMS, ROWS

GAMMA = 0.1
B = np.array([[1.0, 0.5, 0.2], [0.3, -1.0, 0.4]])
T = np.array([1.0, 2.0, 3.0])
SOLVED = (
    "inner_distance",
    "hypergradient_error",
    "inner_error",
    "implicit_hypergradient",
    "outer_curvature",
    "solved_value",
)  # to 1e-3 of a right-hand side
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/diagnose.md").read_text(encoding="utf-8")
SOURCE = (ROOT / "src/bilevel/loop/diagnose/findings.py").read_text(encoding="utf-8")
X0, Y0 = np.array([0.5, -0.5]), np.zeros(3)
MOVED = Record(largest=1.0, steepest=1.0)  # of a run with hypergradients


def inner(x, y, batch):
    H, B = batch
    return 0.5 * y @ H @ y - x @ B @ y


def outer(x, y, batch):
    return 0.5 * jnp.sum((y - batch) ** 2) + 0.5 * GAMMA * jnp.sum(x**2)


PROBLEM = bl.Problem(inner=inner, outer=outer)


def with_spectrum(*values: float) -> np.ndarray:
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    return Q * np.array(values) @ Q.T


H = with_spectrum(2.0, 1.0, 0.5)


def diagnosed(solver, steps, H=H, **options):
    data = bl.Batch(inner=(jnp.asarray(H), jnp.asarray(B)), outer=jnp.asarray(T))
    return bl.run(
        solver,
        jnp.asarray(X0),
        jnp.asarray(Y0),
        data=data,
        steps=steps,
        **with_options(options | dict(diagnose=True)),
    )


def aid_by_hand(alpha, eta, beta, steps, H):
    """(x, ŷ, v̂, h) of every step, and the y it began with."""
    x, y, v, rows = X0, Y0, np.zeros(3), []
    for _ in range(steps):
        began, y = y, y - alpha * (H @ y - B.T @ x)
        v = v - eta * (H @ v - (y - T))
        h = GAMMA * x + B @ v
        rows.append((x, began, y, v, h))
        x = x - beta * h
    return rows


def size(a):
    return float(np.linalg.norm(a))


@pytest.mark.slow
def test_the_numbers_are_those_of_the_closed_forms():
    alpha, eta, beta = 0.3, 0.2, 0.02
    looks = diagnosed(bl.aid(PROBLEM, inner=alpha, adjoint=eta, outer=beta), 40).diagnosis.looks
    assert looks["step"].tolist() == [10, 20, 30, 40]
    by_hand, before = aid_by_hand(alpha, eta, beta, 41, H), (X0, None)
    solve = lambda b: np.linalg.solve(H, b)
    for i, step in enumerate(looks["step"]):
        x, began, y, v, h = by_hand[int(step)]  # a look is at the step that comes next
        here = GAMMA * x + B @ solve(y - T)
        star = solve(B.T @ x)
        exact = GAMMA * x + B @ solve(star - T)
        expected = {
            "inner_residual": size(H @ began - B.T @ x),
            "inner_distance": size(y - star),
            "adjoint_residual": size(H @ v - (y - T)) / size(y - T),
            "hypergradient_error": size(h - here) / size(here),
            "inner_error": size(here - exact) / size(exact),
            "smallest_curvature": 0.5,
            "largest_curvature": 2.0,
            "condition": 4.0,
            "implicit_hypergradient": size(exact),
            "outer_gradient": size(y - T),
            "solved_value": 0.5 * size(star - T) ** 2 + 0.5 * GAMMA * size(x) ** 2,
            "stationarity": size(h),
            "moved": size(x - before[0]),
            "x_norm": size(x),
            "inner_step": alpha,
            "adjoint_step": eta,
            "outer_step": beta,
        }
        if before[1] is not None:
            expected["outer_curvature"] = size(exact - before[1]) / size(x - before[0])
        for name, value in expected.items():
            rtol = 3e-2 if name in SOLVED else 1e-6
            np.testing.assert_allclose(looks[name][i], value, rtol=rtol, err_msg=name)
        before = x, exact


@pytest.mark.slow
def test_the_bias_of_itd_is_that_of_the_powers_of_its_contraction():
    alpha, N = 0.2, 2
    result = diagnosed(bl.itd(PROBLEM, inner=alpha, outer=1e-3, inner_steps=N), 40)
    looks, x, y = result.diagnosis.looks, np.asarray(result.x), np.asarray(result.y)
    for _ in range(N):
        y = y - alpha * (H @ y - B.T @ x)
    v = np.linalg.solve(H, y - T)
    left_out = B @ np.linalg.matrix_power(np.eye(3) - alpha * H, N) @ v
    expected = size(left_out) / size(GAMMA * x + B @ v)
    np.testing.assert_allclose(looks["hypergradient_error"][-1], expected, rtol=1e-2)
    assert codes(result) == ["biased"]
    # 0.9 = 1 − αμ a step, until what is left out is a tenth of a thousandth of the largest h of the run.
    late = [np.median(looks[name][2:]) for name in ("hypergradient_error", "implicit_hypergradient")]
    largest = result.trace["hypergradient_norm"].max()
    count = N + np.ceil(np.log(1e-4 * largest / np.prod(late)) / np.log(0.9))
    assert f"about {count:.0f} inner steps instead of 2" in result.diagnosis.findings[0].sentence


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_so_many_inner_steps_as_are_proposed_leave_no_bias(seed):
    """Random spectra, targets and starts, run until x rests: there all of ∇Φ is bias, however small."""
    rng = np.random.default_rng(seed)
    data = bl.Batch(
        inner=(jnp.asarray(with_spectrum(*rng.uniform(0.2, 2.0, 3))), jnp.asarray(rng.normal(size=(2, 3)))),
        outer=jnp.asarray(rng.normal(size=3)),
    )
    start = jnp.asarray(rng.normal(size=2)), jnp.zeros(3)
    made = lambda steps: bl.run(
        bl.itd(PROBLEM, inner=0.4, outer=0.1, inner_steps=steps),
        *start,
        data=data,
        steps=4000,
        options=bl.RunOptions(diagnose=True),
    )
    few = made(1)
    assert codes(few)[0] == "biased"
    count = int(re.search(r"about (\d+) inner steps", str(few.diagnosis.findings[0]))[1])
    assert "biased" not in codes(made(count))


def advised(solver, steps=1000):
    """What is said about its bias, and the number of steps proposed, if one is."""
    said = [each.sentence for each in diagnosed(solver, steps).diagnosis.findings if each.code == "biased"]
    number = re.search(r"about (\d+) inner steps", said[0]) if said else None
    return said, number and int(number[1])


@pytest.mark.slow
def test_what_is_proposed_against_a_bias_is_what_the_method_has():
    """Of truncated steps only the differentiated ones count; a series has factors; BDA's bias has no known rate."""
    beta = 0.02
    _, count = advised(bl.itd(PROBLEM, inner=0.3, outer=beta, inner_steps=2))
    said, enough = advised(bl.itd(PROBLEM, inner=0.3, outer=beta, inner_steps=8, truncate=2))
    assert f"differentiate about {enough} inner steps instead of 2 (truncate=)" in said[0]
    assert abs(enough - count) <= 2  # y is nearer to y* with more steps, the bias at y* the same
    assert advised(bl.itd(PROBLEM, inner=0.3, outer=beta, inner_steps=4 * enough, truncate=2))[0]
    assert not advised(bl.itd(PROBLEM, inner=0.3, outer=beta, inner_steps=enough, truncate=enough))[0]
    assert advised(bl.solvers.forward_itd(PROBLEM, inner=0.3, outer=beta, inner_steps=2))[1] == count
    said, number = advised(bl.solvers.bda(PROBLEM, inner=0.3, outer=beta, inner_steps=2))
    assert number is None
    assert "take more inner steps, or bl.aid" in said[0]
    series = lambda **counts: bl.stocbio(
        PROBLEM, inner=0.3, adjoint=0.3, outer=beta, batches="shared", **counts
    )
    assert "take more factors of its series (products=)" in advised(series(products=1))[0][0]
    assert advised(series(products=1, inner_steps=60))[0]
    assert not advised(series(products=60))[0]


@pytest.mark.slow
def test_an_array_of_x_that_nothing_depends_on_is_named():
    """Also if g has it in a term without y; not if it is logits, whose sum the cross product is blind to."""
    g = lambda x, y: jnp.sum((y - jax.nn.softmax(x["used"])) ** 2) + jnp.sum(x["alone"] ** 2)
    f = lambda x, y: jnp.sum((y - 2) ** 2) + 0.0 * jnp.sum(x["deep"]["lost"])
    x0 = {"used": jnp.arange(3.0), "alone": jnp.ones(2), "deep": {"lost": jnp.ones(())}}
    for solver in (bl.aid, bl.soba, bl.itd):
        sizes = {"inner": 0.25, "outer": 0.1} | ({} if solver is bl.itd else {"adjoint": 0.25})
        result = bl.run(
            solver(bl.Problem(inner=g, outer=f), **sizes),
            x0,
            jnp.zeros(3),
            steps=40,
            options=bl.RunOptions(diagnose=True),
        )
        found = [each for each in result.diagnosis.findings if each.code == "x_unused"]
        assert len(found) == 1
        assert "of x['alone'], x['deep']['lost'] is exactly zero" in found[0].sentence


def test_an_array_of_x_that_rests_is_not_called_unused():
    """Its hypergradient is exactly zero at every look, where it began: not a little aside."""
    g = lambda x, y: jnp.sum((y - x["a"]) ** 2) / 2
    f = lambda x, y: jnp.sum((y - 2) ** 2) / 2 + jnp.sum(x["b"] ** 2) / 2
    x0 = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    result = bl.run(
        bl.aid(bl.Problem(inner=g, outer=f), inner=0.5, adjoint=0.5, outer=0.1),
        x0,
        jnp.zeros(2),
        steps=20,
        options=bl.RunOptions(diagnose=True),
    )
    assert "x_unused" not in codes(result)


def test_an_array_without_numbers_is_not_called_unused():
    g = lambda x, y: jnp.sum((y - x["a"]) ** 2) / 2 + jnp.sum(x["none"])
    problem = bl.Problem(inner=g, outer=lambda x, y: jnp.sum((y - 2) ** 2) / 2)
    x0 = {"a": jnp.zeros(2), "none": jnp.zeros((0, 3))}
    result = bl.run(
        bl.aid(problem, inner=0.5, adjoint=0.5, outer=0.1),
        x0,
        jnp.zeros(2),
        steps=20,
        options=bl.RunOptions(diagnose=True),
    )
    assert "x_unused" not in codes(result)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_an_x_of_rows_that_no_look_had_is_neither_dead_nor_unused(alone):
    """One row in eight has a weight, and the batches of all four looks are without it; x has moved all the same."""
    weight = lambda x: x if alone else x["rare"]
    g = lambda x, y, batch: jnp.mean((1 + batch * jnp.exp(weight(x))) * (y - batch - 1) ** 2)
    f = lambda x, y, batch: jnp.mean((y - batch - 3) ** 2) + (0 if alone else jnp.sum(x["often"] ** 2))
    x0 = jnp.zeros(()) if alone else {"often": jnp.ones(()), "rare": jnp.zeros(()), "lost": jnp.zeros(())}
    batches = (bl.Batch(inner=jnp.full(1, float(i % 8 == 3)), outer=jnp.zeros(1)) for i in itertools.count())
    result = bl.run(
        bl.aid(bl.Problem(inner=g, outer=f), inner=0.1, adjoint=0.1, outer=0.01),
        x0,
        jnp.zeros(()),
        data=batches,
        steps=64,
        options=bl.RunOptions(diagnose=True),
    )
    assert abs(weight(result.x)) > 1e-4
    assert codes(result) == ([] if alone else ["x_unused"])
    assert alone or "of x['lost'] is exactly zero" in result.diagnosis.findings[0].sentence
    assert alone or "depends on it on the batches of the looks" in result.diagnosis.findings[0].sentence


@pytest.mark.slow
def test_an_x_that_a_bound_holds_from_the_first_step_on():
    """The stationarity measure is zero, the hypergradient is not: there is nothing that it has fallen from."""
    problem = bl.Problem(
        inner=lambda x, y: jnp.sum(jnp.array([1.0, 0.2]) * (y - x) ** 2),
        outer=lambda x, y: jnp.sum((y + 2) ** 2),
    )
    solver = bl.itd(problem, inner=0.2, outer=bl.projected(0.1, lambda x: jnp.maximum(x, 0.0)), inner_steps=2)
    result = bl.run(solver, jnp.zeros(2), jnp.zeros(2), steps=40, options=bl.RunOptions(diagnose=True))
    assert codes(result) == ["biased", "x_rests"]
    assert "take more inner steps" in result.diagnosis.findings[0].sentence
    assert "x has stayed at its start" in result.diagnosis.findings[1].sentence


@pytest.mark.slow
def test_a_run_that_went_back_is_judged_by_the_steps_it_went_on_with():
    """Φ = ½‖x − 2‖² until x has run away, where f, and with it the secant from there, is steeper without end."""
    jumps = optax.sgd(lambda count: jnp.where(count < 400, jnp.float32(0.003), jnp.float32(60.0)))
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2),
        outer=lambda x, y: jnp.sum(0.5 * (y - 2) ** 2 + jnp.where(y > 9, (y - 9) ** 4, 0)),
    )
    start = jnp.ones(2, jnp.float32), jnp.zeros(2, jnp.float32)
    result = bl.run(
        bl.aid(problem, inner=0.5, adjoint=0.5, outer=jumps),
        *start,
        steps=1600,
        options=bl.RunOptions(every=50, on_divergence="halve", diagnose=True),
    )
    assert result.halvings
    assert result.status.code is bl.Code.COMPLETED
    looks = result.diagnosis.looks
    assert np.isnan(looks["outer_step"][looks["step"] <= result.halvings[-1][0]]).all()
    assert not (looks["outer_curvature"] > 1.05).any()
    assert looks["stationarity"][0] < 1 < result.diagnosis.looks["outer_step"][-1] < 2
    assert not {"outer_step", "outer_grows"} & set(codes(result))


def codes(result):
    return [finding.code for finding in result.diagnosis.findings]


FLAT = with_spectrum(2.0, 1.0, 1e-3)
SADDLE = with_spectrum(2.0, 1.0, -0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expected", "sizes", "steps", "H", "words"),
    [
        ([], (0.5, 0.5, 1e-2), 200, H, "nothing stands out. step"),
        (["inner_step"], (1.05, 0.5, 1e-4), 40, H, "1.05 is above 2/L = 1, with L = 2"),
        (["adjoint_step"], (0.5, 1.05, 1e-4), 40, H, "the adjoint step size 1.05 is above 2/L = 1"),
        (["adjoint_lags"], (0.5, 1e-3, 1e-3), 200, H, "the adjoint step size 0.001 toward 1/L ≈ 0.5"),
        (["y_lags"], (1e-3, 0.5, 5e-3), 100, H, "the inner step size 0.001 toward 1/L ≈ 0.5"),
        (["x_rests"], (0.5, 0.5, 0.05), 3000, H, "x has converged"),
        (["x_still"], (0.5, 0.5, 1e-12), 200, H, "The outer step size 1e-12 is too small for"),
        (
            ["not_convex", "adjoint_lags", "x_still"],
            (1e-6, 1e-6, 1e-6),
            20,
            SADDLE,
            "first raise the adjoint step size 1e-06",
        ),
        (["not_convex"], (0.5, 0.5, 1e-4), 20, SADDLE, "curves by -0.2, against 2 at most"),
        (["flat"], (0.5, 0.5, 1e-9), 200, FLAT, "κ is at least 2e+03, and 200 gradient steps"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_finding_fires_where_it_must_and_nowhere_else(expected, sizes, steps, H, words):
    result = diagnosed(
        bl.aid(PROBLEM, **dict(zip(("inner", "adjoint", "outer"), sizes, strict=True))), steps, H
    )
    named = [code for code in codes(result) if not (expected == ["flat"] and code != "flat")]  # v is slow too
    assert named == expected
    assert words in " ".join(str(result.diagnosis).split())


def documented() -> list[set[str]]:
    """The names in the first column of every table of the page."""
    tables = re.findall(r"^\|[-|]*\|\n((?:\|.*\n)*)", PAGE, re.MULTILINE)
    first = ["".join(re.findall(r"^\|([^|]*)\|", rows, re.MULTILINE)) for rows in tables]
    return [set(re.findall(r"`(\w+)`", cells)) for cells in first]


@pytest.mark.slow
def test_an_inner_objective_without_y_and_an_x_without_effect_are_told():
    """And the page has all findings and columns."""
    solver, nothing = bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=1e-3), jnp.zeros((2, 3))
    flat = bl.Batch(inner=(jnp.zeros((3, 3)), nothing), outer=jnp.asarray(T))
    found = bl.run(
        solver, jnp.asarray(X0), jnp.asarray(Y0), data=flat, steps=8, options=bl.RunOptions(diagnose=True)
    )
    assert codes(found) == ["y_dead"]
    assert "g does not depend on y any more" in found.diagnosis.findings[0].sentence
    findings, columns = documented()
    assert found.diagnosis.looks.keys() - {"step"} == columns
    assert findings == set(re.findall(r'_finding\(\s*"(\w+)"', SOURCE)) | {"inner_step", "adjoint_step"}
    apart = bl.Batch(inner=(jnp.asarray(H), nothing), outer=jnp.asarray(T))  # h = γx + Bv = 0 at x = 0
    found = bl.run(
        solver, jnp.zeros(2), jnp.asarray(Y0), data=apart, steps=40, options=bl.RunOptions(diagnose=True)
    )
    assert codes(found) == ["x_rests"]  # the solution of γx = 0
    assert "x has stayed at its start" in found.diagnosis.findings[0].sentence
    blind = bl.Problem(inner=inner, outer=lambda x, y, batch: 0.5 * jnp.sum((y - batch) ** 2))
    solver = bl.aid(blind, inner=0.5, adjoint=0.5, outer=1e-3)
    found = bl.run(
        solver, jnp.asarray(X0), jnp.asarray(Y0), data=apart, steps=40, options=bl.RunOptions(diagnose=True)
    )
    assert codes(found) == ["x_dead"]
    assert "exactly zero at every step" in found.diagnosis.findings[0].sentence
    assert "Does f depend on x, or ∇_y g on x, at all?" in found.diagnosis.findings[0].sentence


@pytest.mark.slow
def test_a_network_of_dead_units_is_told_and_one_that_lives_is_not():
    """a·y ≤ ‖a‖‖y‖ < 5 for all rows a, so that no unit is on where the threshold is 5."""
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    loss = lambda y, batch: (jax.nn.relu(batch[0] @ y - batch[1]) - 1) ** 2
    problem = bl.Problem(
        inner=lambda x, y, batch: jnp.mean(jax.nn.sigmoid(x) * loss(y, batch)),
        outer=lambda x, y, batch: jnp.mean(loss(y, batch)),
    )
    solver, start = bl.solvers.sama(problem, inner=0.1, outer=0.1), (jnp.ones(3), 0.1 * jnp.ones(2))
    for threshold, expected in ((5.0, ["y_dead"]), (-1.0, [])):
        level = jnp.asarray(rows), jnp.asarray(threshold)
        result = bl.run(
            solver,
            *start,
            data=bl.Batch(inner=level, outer=level),
            steps=8,
            options=bl.RunOptions(diagnose=True),
        )
        assert codes(result) == expected
        assert ("g and f do not depend on y" in str(result.diagnosis)) == bool(expected)


@pytest.mark.slow
def test_a_dead_layer_is_told_under_a_bias_and_a_decay_which_have_gradients():
    """With b = −5 no unit of the first layer is on; the second layer's bias and the decay move all the same."""
    rows, level = jnp.asarray(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])), jnp.zeros(3)

    def loss(y, batch):
        hidden = jax.nn.relu(batch[0] @ y["W"] + y["b"][None])
        return jnp.mean((hidden @ y["V"] + y["c"] - 1 - batch[1]) ** 2)

    decay = lambda x, y: jnp.exp(x[0]) * sum(jnp.sum(a**2) for a in y.values())
    problem = bl.Problem(
        inner=lambda x, y, batch: loss(y, batch) + decay(x, y), outer=lambda x, y, batch: loss(y, batch)
    )
    y0 = {"W": 0.1 * jnp.ones((2, 4)), "b": jnp.zeros(4), "V": 0.1 * jnp.ones(4), "c": jnp.zeros(())}
    data = bl.Batch(inner=(rows, level), outer=(rows, level))
    for bias, dead in ((-5.0, True), (1.0, False)):
        start = jnp.array([-3.0]), y0 | {"b": jnp.full(4, bias)}
        result = bl.run(
            bl.aid(problem, inner=0.05, adjoint=0.05, outer=1e-3),
            *start,
            data=data,
            steps=8,
            options=bl.RunOptions(diagnose=True),
        )
        assert ("y_dead" in codes(result)) == dead
        assert ("with 94.1 % of the numbers in y" in str(result.diagnosis).replace("\n    ", " ")) == dead
    # Most of y where f has its minimum: zero there, but not beside.
    apart = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y["a"] - 1 - x) ** 2) + 0.5 * jnp.sum(y["b"] ** 2),
        outer=lambda x, y: 0.5 * jnp.sum(y["a"] ** 2) + 0.5 * jnp.sum(y["b"] ** 2),
    )
    start = jnp.zeros(1), {"a": jnp.ones(1), "b": jnp.zeros(3)}
    result = bl.run(
        bl.aid(apart, inner=0.5, adjoint=0.5, outer=1e-2),
        *start,
        steps=8,
        options=bl.RunOptions(diagnose=True),
    )
    assert result.diagnosis.looks["outer_silent"].tolist() == [0.75] * 4
    assert result.diagnosis.looks["silent_beside"].tolist() == [0.0] * 4
    assert "y_dead" not in codes(result)


@pytest.mark.slow
def test_an_inner_value_that_is_nan_though_its_gradient_is_not():
    """A label beyond the classes: what is looked up for it is NaN, and depends on nothing."""

    def g(x, y, labels):
        picked = jnp.take_along_axis(jnp.stack([y, -y]), labels[None], axis=0, mode="fill")
        return jnp.sum(picked) + jnp.sum((y - x) ** 2)

    problem = bl.Problem(inner=g, outer=lambda x, y: jnp.sum((y - 1) ** 2))
    solver = bl.aid(problem, inner=0.2, adjoint=0.2, outer=1e-2)
    for last, expected in ((2, True), (1, False)):
        data = bl.Batch(inner=jnp.array([0, 1, last]))
        result = bl.run(
            solver, jnp.zeros(3), jnp.zeros(3), data=data, steps=8, options=bl.RunOptions(diagnose=True)
        )
        assert result.status.code is bl.Code.COMPLETED
        assert ("inner_nan" in codes(result)) == expected
    assert np.isfinite(result.diagnosis.looks["inner_value"]).all()
    both = bl.aid(
        bl.Problem(inner=g, outer=g), inner=0.2, adjoint=0.2, outer=1e-2
    )  # where f has such labels too, no step is taken
    labels = jnp.array([0, 1, 2])
    result = bl.run(both, jnp.zeros(3), jnp.zeros(3), data=bl.Batch(inner=labels, outer=labels), steps=8)
    assert result.status.code is bl.Code.DIVERGED
    assert "is a label no class" in result.status.message


def test_an_x_at_rest_after_steps_on_y_that_are_too_large_is_not_called_fine():
    looks = {"step": np.array([5.0, 10.0, 15.0, 20.0]), "moved": np.zeros(4), "x_norm": np.ones(4)}
    looks |= {"stationarity": np.full(4, 1e-6), "outer_value": np.ones(4), "inner_residual": np.ones(4)}
    looks |= {"largest_curvature": np.full(4, 2.0), "outer_step": np.ones(4)}
    looks |= {"noisy": np.ones(4)}
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=1.0)
    for size, expected in ((0.5, ["x_rests"]), (3.0, ["inner_step"])):
        found = findings(Evidence(solver, looks | {"inner_step": np.full(4, size)}, MOVED))
        assert [each.code for each in found] == expected


def test_of_a_run_that_broke_the_cause_comes_first():
    looks = {"step": np.array([5.0]), "smallest_curvature": np.array([-0.2]), "largest_curvature": np.ones(1)}
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=3.0, outer=1.0)
    seen = Evidence(solver, looks, Record(largest=1.0, steepest=1.0, broke=("lower it", ("adjoint",))))
    assert [each.code for each in findings(seen)] == ["adjoint_step", "not_convex"]


def test_x_is_not_called_dead_where_it_has_run_away():
    """A sigmoid is flat there."""
    looks = {"step": np.array([5.0]), "x_beside": np.zeros(1)}
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=3.0, outer=1.0)
    seen = Evidence(solver, looks, Record(largest=1.0, steepest=1.0, broke=("lower it", ("adjoint",))))
    assert [each.code for each in findings(seen)] == ["adjoint_step"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adjoint", "told"),
    [
        (0.5, True),
        (1e-6, True),
        (bl.adjoints.damped(0.5, 0.1), True),  # less than what g curves downwards by
        (bl.adjoints.damped(0.5, 0.4), False),
        (bl.adjoints.minres(max_steps=20), False),
    ],
)
def test_what_is_proposed_against_negative_curvature_is_a_cure_to_copy(adjoint, told):
    found = diagnosed(bl.aid(PROBLEM, inner=0.5, adjoint=adjoint, outer=1e-4), 20, SADDLE)
    assert ("not_convex" in codes(found)) == told
    if isinstance(adjoint, float):  # a step that is no good is not proposed again: 1/L is
        cures = "bl.adjoints.damped(0.5, 0.4), or take bl.adjoints.minres(max_steps=20)."
        assert found.diagnosis.findings[0].sentence.endswith(cures)


def test_where_g_curves_upwards_nowhere_no_step_is_made_up():
    looks = {
        "step": np.array([5.0]),
        "smallest_curvature": np.array([-2.0]),
        "largest_curvature": np.zeros(1),
    }
    looks |= {"adjoint_step": np.full(1, 0.5)}
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=1.0)
    seen = Evidence(solver, looks, Record(largest=1.0, steepest=1.0, broke=("lower it", ("adjoint",))))
    assert "bl.adjoints.damped(adjoint, 4)" in findings(seen)[-1].sentence


def test_a_method_without_v_is_not_told_to_damp_one():
    found = diagnosed(bl.itd(PROBLEM, inner=0.5, outer=1e-4), 20, SADDLE)
    (sentence,) = (each.sentence for each in found.diagnosis.findings if each.code == "not_convex")
    assert "the bias is not measured: add a ridge to g." in sentence


@pytest.mark.parametrize(("size", "told"), [(1e-4, True), (0.01, False), (0.5, False)])
def test_an_adjoint_that_has_hardly_set_out_is_told_on_minibatches_too(size, told):
    """1 − exp(−KηL) of its way at most: 200 · 1e-4 · 2 is 0.04."""
    looks = {"step": np.array([100.0, 200.0]), "moved": np.ones(2), "x_norm": np.ones(2), "noisy": np.ones(2)}
    looks |= {"stationarity": np.ones(2), "outer_value": np.ones(2), "inner_residual": np.ones(2)}
    looks |= {"largest_curvature": np.full(2, 2.0), "adjoint_step": np.full(2, size)}
    found = findings(Evidence(bl.aid(PROBLEM, inner=0.5, adjoint=size, outer=1.0), looks, MOVED))
    assert [each.code for each in found] == ["adjoint_lags"] * told
    assert all("cover at most 3.9% of its way" in each.sentence for each in found)
    note = "whether y lags, and" if told else "whether y or v lags, and"
    assert f"(on minibatches: {note} the outer step, are not judged)" in str(Diagnosis(found, looks))


@pytest.mark.parametrize(("smallest", "told"), [(1e-12, True), (1e-3, False)])
def test_where_y_has_no_curvature_at_all_a_stop_gradient_is_asked_for(smallest, told):
    looks = {
        "step": np.array([100.0]),
        "moved": np.ones(1),
        "x_norm": np.ones(1),
        "inner_distance": np.ones(1),
    }
    looks |= {"stationarity": np.ones(1), "outer_value": np.ones(1), "inner_residual": np.ones(1)}
    looks |= {"largest_curvature": np.ones(1), "smallest_curvature": np.full(1, smallest)}
    (flat,) = findings(Evidence(bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=1.0), looks, MOVED))
    assert flat.code == "flat"
    assert ("stop_gradient" in flat.sentence) == told


def test_two_findings_with_one_remedy_are_told_once():
    found = tuple(Finding(code, "lower both.") for code in ("inner_step", "adjoint_step"))
    assert str(Diagnosis(found, {"step": np.array([])})).splitlines()[1:] == [
        "  - inner_step, adjoint_step: lower both."
    ]


@pytest.mark.slow
def test_an_outer_step_beyond_its_range():
    solve = np.linalg.inv(H)
    L_phi = np.linalg.eigvalsh(B @ solve @ solve @ B.T)[-1] + GAMMA
    far = diagnosed(bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=2.5 / L_phi), 12)
    assert "outer_step" in codes(far)
    assert np.nanmax(far.diagnosis.looks["outer_curvature"]) <= L_phi * 1.01  # from below
    near = diagnosed(bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=0.1 / L_phi), 12)
    assert "outer_step" not in codes(near)


def test_an_outer_step_that_runs_away_on_minibatches():
    """With B = 0 there is h = γx: at β = 3/γ, x grows by −2 a step, and f fourfold."""
    level = jnp.asarray(H), jnp.zeros((2, 3))
    given = itertools.repeat(bl.Batch(inner=level, outer=jnp.asarray(T)))
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=3 / GAMMA)
    result = bl.run(
        solver, jnp.asarray(X0), jnp.asarray(Y0), data=given, steps=12, options=bl.RunOptions(diagnose=True)
    )
    assert codes(result) == ["outer_step"]
    assert f"above 2/L_Φ ≈ {2 / GAMMA:.3g}" in result.diagnosis.findings[0].sentence
    assert "the outer step, are not judged" not in str(result.diagnosis)
    assert "finite blow-up" in result.status.message


def test_an_outer_value_that_grows_for_no_known_reason():
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=1e-2)
    looks = diagnosed(solver, 200).diagnosis.looks
    looks |= {"noisy": np.ones(len(looks["step"]))}
    (found,) = findings(
        Evidence(solver, looks, Record(largest=looks["stationarity"].max(), steepest=1.0), rise=(1.0, 3e4))
    )
    assert found.code == "outer_grows"
    assert "from 1 to 3e+04: lower the outer step size 0.01" in found.sentence


def test_a_y_that_leaves_a_start_where_f_is_small_is_no_outer_value_that_grows():
    """f(x₀, t) is next to nothing, and Φ falls from the first step on: a smaller outer step would cure nothing."""
    data = bl.Batch(inner=(jnp.asarray(H), jnp.asarray(B)), outer=jnp.asarray(T))
    solver = bl.aid(PROBLEM, inner=0.02, adjoint=0.02, outer=1e-3)
    result = bl.run(
        solver, jnp.asarray(X0), jnp.asarray(T), data=data, steps=800, options=bl.RunOptions(diagnose=True)
    )
    assert result.trace["outer_value"][-1] > 11 * result.trace["outer_value"][0]
    assert np.all(np.diff(result.diagnosis.looks["solved_value"]) < 0)
    assert codes(result) == []
    assert "or as y left a start at which f was small" in result.status.message


@pytest.mark.slow
def test_a_run_that_stops_or_breaks_is_looked_at_where_it_ended():
    stopped = diagnosed(bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=0.05), 10_000, tol=1e-3, every=7)
    assert stopped.status.code is bl.Code.CONVERGED
    assert stopped.diagnosis.looks["step"].tolist() == [stopped.steps]
    assert "from 1 look:" in str(stopped.diagnosis)
    broken = diagnosed(bl.aid(PROBLEM, inner=3.0, adjoint=0.5, outer=1e-3), 10_000)
    assert broken.status.code is bl.Code.DIVERGED
    assert broken.diagnosis.looks["step"][-1] == broken.steps
    assert codes(broken) == ["inner_step"]
    assert broken.diagnosis.findings[0].sentence in broken.status.message
    # L of the last look is that of exp(x)y² with an x that has run away; the status is not misled, whatever the chunks.
    ridge = bl.Problem(
        inner=lambda x, y: jnp.sum((y - 1) ** 2) + jnp.exp(x[0]) * jnp.sum(y**2),
        outer=lambda x, y: jnp.sum((y + 1) ** 2),
    )
    start = jnp.array([-1.0]), jnp.zeros(2)
    for solver, code in (
        (bl.aid(ridge, inner=1.2, adjoint=0.1, outer=0.01), "inner_step"),
        (bl.aid(ridge, inner=0.1, adjoint=0.1, outer=1e6), "diverged"),
    ):
        said = set()
        for every in (1, 100):
            broken = bl.run(
                solver,
                *start,
                steps=400,
                options=bl.RunOptions(every=every, diagnose=True),
            )
            assert codes(broken) == [code]
            said.add(broken.status.message)
        (message,) = said
        assert ("2/L = 0.731" in message) == (code == "inner_step")  # λ = 2 + 2/e
        assert ("lower the outer" in message) == (code == "diverged")


@pytest.mark.slow
def test_an_x_that_led_to_where_the_inner_step_is_too_large_is_blamed_whatever_its_rule():
    """λ = 2 + 2eˣ, so that with a step of 0.1 on y it must stay below x = log 9, and x moves by 3 in every step."""
    ridge = bl.Problem(
        inner=lambda x, y: jnp.sum((y - 1) ** 2) + jnp.exp(x[0]) * jnp.sum(y**2),
        outer=lambda x, y: jnp.sum((y + 1) ** 2),
    )
    solver = bl.aid(ridge, inner=0.1, adjoint=0.1, outer=optax.sign_sgd(3.0))
    result = bl.run(solver, jnp.array([-1.0]), jnp.ones(2), steps=400, options=bl.RunOptions(diagnose=True))
    assert result.status.code is bl.Code.DIVERGED
    assert "lower the outer step size, or bound x" in result.status.message
    assert "x moved to where the inner step size 0.1 is above 2/L" in result.status.message
    assert "at step 0 that limit was 0.731" in result.status.message
    assert codes(result)[0] == "diverged"


def test_who_debugs_nan_gets_a_diagnosis_too():
    with jax.debug_nans(True):
        seen = diagnosed(bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=0.05), 4).diagnosis
    assert len(seen.looks["condition"]) == 4
    assert not seen.notes


def test_who_debugs_nan_goes_on_from_a_checkpoint_too(tmp_path):
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=0.05)
    diagnosed(solver, 4, checkpoint=tmp_path, resume="auto")
    with jax.debug_nans(True):
        assert (
            len(diagnosed(solver, 4, checkpoint=tmp_path, resume="auto").diagnosis.looks["step"]) == 4
        )  # it had ended
        assert len(diagnosed(solver, 8, checkpoint=tmp_path, resume="auto").diagnosis.looks["step"]) > 4


@pytest.mark.slow
def test_a_checkpoint_from_before_arrays_of_x_were_kept_calls_none_unused(tmp_path, monkeypatch):
    """The first half of the run depends on all of x, which its looks would have said; the second no more."""
    g = lambda x, y: jnp.sum((y - x["a"]) ** 2) / 2
    f = lambda x, y: jnp.sum((y - 2) ** 2) / 2 + jnp.sum(jnp.maximum(x["b"], 0))
    x0 = {"a": jnp.zeros(2), "b": jnp.full(2, 0.45)}
    solver = bl.aid(bl.Problem(inner=g, outer=f), inner=0.5, adjoint=0.5, outer=0.1)
    go = lambda steps: bl.run(
        solver,
        x0,
        jnp.zeros(2),
        steps=steps,
        options=bl.RunOptions(diagnose=True),
        checkpoint=tmp_path,
        resume="auto",
    )
    with monkeypatch.context() as older:
        kept = bl.hooks.Diagnose.get_state
        without = lambda hook: {name: value for name, value in kept(hook).items() if name != "moves"}
        older.setattr(bl.hooks.Diagnose, "get_state", without)
        assert "x_unused" not in codes(go(4))
    result = go(40)
    assert result.diagnosis.looks["step"][0] < 4
    assert "x_unused" not in codes(result)


def test_a_secant_of_a_run_that_grows_counts_though_later_ones_overflow():
    looks = {"step": np.arange(4), "outer_curvature": np.array([np.nan, 25.0, np.nan, np.nan])}
    assert (
        Evidence(bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=1.0), looks, Record())["outer_curvature"]
        == 25.0
    )


def test_a_constant_in_f_does_not_make_x_look_still():
    """Φ + c has the minima of Φ, and x moves as far."""
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=1e-2)
    looks = diagnosed(solver, 200).diagnosis.looks
    largest = looks["stationarity"].max()
    for constant in (0.0, 1e9):
        moved_up = looks | {"outer_value": looks["outer_value"] + constant}
        assert findings(Evidence(solver, moved_up, Record(largest=largest, steepest=1.0))) == ()


@pytest.mark.slow
def test_the_looks_stay_within_their_share_of_the_oracle_calls():
    """What a look says it takes is what the program takes; and all together are 2 %, or four looks."""
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=1e-3)
    data = bl.Batch(inner=(jnp.asarray(H), jnp.asarray(B)), outer=jnp.asarray(T))
    run = bl.start(solver, jnp.asarray(X0), jnp.asarray(Y0), data)
    marked = bl.aid(counted(PROBLEM), inner=0.5, adjoint=0.5, outer=1e-3)
    look = lambda state, batch: close_look(marked, state, batch, True, Point(state.x, state.x))[0]
    seen, taken = jax.jit(counting(look))(run.solver, data)
    step = sum(oracle_calls(solver, run, data))
    assert sum(map(int, taken)) == int(seen["calls"]) + step
    assert int(seen["calls"]) >= LANCZOS

    for steps in (20, 5000):
        looks = diagnosed(solver, steps).diagnosis.looks
        calls = looks["calls"] + step
        assert len(calls) >= 4
        assert looks["step"][-1] == steps
        assert calls.sum() <= max(0.02 * steps * step, 4 * calls.max())
    assert len(calls) > 8


def epochs():
    rng = np.random.default_rng(1)
    rows = jnp.asarray(rng.normal(size=(16, 2))), jnp.asarray(rng.normal(size=16))
    return bl.epochs(bl.Batch(inner=rows, outer=rows), 4)


@pytest.mark.slow
def test_not_a_bit_of_the_run_changes():
    ridge = lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2) + jnp.exp(x[0]) * y @ y
    fit = lambda x, y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2)
    solver = bl.aid(bl.Problem(inner=ridge, outer=fit), inner=0.1, adjoint=0.1, outer=0.1)
    start = jnp.zeros(1), jnp.zeros(2)
    plain = bl.run(solver, *start, data=epochs(), steps=30)
    seen = bl.run(
        solver,
        *start,
        data=epochs(),
        steps=30,
        options=bl.RunOptions(diagnose=True, thin=3),
    )
    assert plain.diagnosis is None
    assert jax.tree.all(jax.tree.map(np.array_equal, plain.state, seen.state))
    looks = seen.diagnosis.looks
    assert looks["noisy"].all()
    assert "inner_distance" not in looks
    assert seen.diagnosis.notes == ()
    more = bl.run(
        solver,
        data=epochs(),
        steps=30,
        resume=seen,
        options=bl.RunOptions(thin=3, diagnose=True),
    )
    assert more.diagnosis.looks["step"].tolist() == [38, 46, 54, 60]


class Refusing:
    """An objective that no program can be made of any more, once it says so."""

    broken = False

    def __call__(self, x, y):
        if self.broken:
            raise RuntimeError("<b>no more</b>")
        return 0.5 * jnp.sum((y - x) ** 2)


@pytest.mark.slow
def test_a_look_that_fails_is_a_note_and_the_run_goes_on():
    g = Refusing()
    solver = bl.itd(bl.Problem(inner=g, outer=lambda x, y: jnp.sum(y**2)), inner=0.5, outer=0.1)
    refuse = lambda event: setattr(g, "broken", True)
    result = bl.run(
        solver,
        *START,
        steps=8,
        options=bl.RunOptions(every=2, diagnose=True),
        hooks=[refuse],
    )
    assert result.status.code is bl.Code.COMPLETED
    assert result.steps == 8
    assert len(result.diagnosis.looks["step"]) == 0
    assert result.diagnosis.findings == ()
    assert len(result.diagnosis.notes) == 2
    assert "RuntimeError" in result.diagnosis.notes[0]
    assert "nothing could be seen" in str(result.diagnosis)
    page = result.diagnosis._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maml", "soba"])
def test_methods_of_other_kinds(name):
    row = next(row for row in ROWS if row.name == name)
    p = PROBLEMS[row.problems[0]](float)
    result = bl.run(
        row.make(p.problem, p.L), p.x0, p.y0, data=p.data, steps=4, options=bl.RunOptions(diagnose=True)
    )
    assert result.diagnosis.notes == ()
    assert result.diagnosis.looks["step"].tolist() == [1, 2, 3, 4]
    assert ("condition" in result.diagnosis.looks) == (name == "soba")


START = jnp.ones(1), jnp.zeros(1)
ONE = bl.aid(
    bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y**2)),
    inner=0.1,
    adjoint=0.1,
    outer=0.1,
)


def test_a_loader_of_python_random_keys_and_a_rule_without_a_step_size():
    loss = lambda x, y, batch, key: jnp.sum((y - x - batch) ** 2) + 0 * jax.random.normal(key)
    problem = bl.Problem(inner=loss, outer=lambda x, y, batch: jnp.sum(y**2))
    solver = bl.solvers.darts_first_order(problem, inner=optax.sgd(0.1, momentum=0.9), outer=0.1)
    given = (bl.Batch(inner=np.full(1, float(i)), outer=np.zeros(1)) for i in range(100))
    result = bl.run(solver, *START, data=given, steps=6, options=bl.RunOptions(diagnose=True))
    assert result.diagnosis.notes == ()
    assert "not judged" in str(result.diagnosis)  # of minibatches
    assert result.diagnosis.looks["step"].tolist() == [2, 4, 6]
    assert np.isnan(result.diagnosis.looks["inner_step"]).all()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (0.3, 0.3),
        (optax.sgd(0.3), 0.3),
        (optax.sgd(optax.linear_schedule(1.0, 0.0, 10)), 0.8),  # after two updates
        (optax.inject_hyperparams(optax.sgd)(0.3), 0.3),
        (bl.projected(optax.sgd(0.3), lambda x: x), 0.3),
        (optax.chain(optax.clip_by_global_norm(1e3), optax.sgd(0.3)), 0.3),
        (optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(0.3)), np.nan),
        (optax.sgd(0.3, momentum=0.9), np.nan),
        (optax.adam(0.3), np.nan),
    ],
)
def test_the_step_size_of_a_rule_is_what_it_does(rule, expected):
    gradient, rule = jnp.asarray([1.0, -2.0]), as_rule(rule, "inner")
    memory = rule.init(gradient)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs that
        for scale in (1.0, 0.5):
            value = lambda y: jnp.sum(y**2)
            _, memory = rule.update(scale * gradient[::-1], memory, gradient, value)
        found = plain_step(rule, memory, gradient)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_event_of_no_run_measures_nothing():
    with pytest.raises(TypeError, match=r"only while bl\.run is running"):
        bl.hooks.Event(0, 1, bl.start(ONE, *START), None, {}, 0.0, "AID").measure(len)


@pytest.mark.slow
def test_at_the_solution_nothing_lags_however_much_rounding_is_off():
    """∇Φ is zero there to rounding, so that any share of what is left of the hypergradient may be wrong."""
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 1) ** 2)
    )
    result = bl.run(
        bl.aid(problem, inner=0.5, adjoint=0.5, outer=0.1),
        jnp.zeros(3),
        jnp.zeros(3),
        steps=800,
        options=bl.RunOptions(diagnose=True),
    )
    assert [each.code for each in result.diagnosis.findings] == ["x_rests"]


def test_a_run_that_goes_on_is_measured_by_its_earlier_steps_too():
    """One that had come to rest has not stopped for a small step size, and a few more steps make no flat problem."""
    solver = bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=0.05)
    data = bl.Batch(inner=(jnp.asarray(H), jnp.asarray(B)), outer=jnp.asarray(T))
    begin = lambda steps: bl.run(solver, jnp.asarray(X0), jnp.asarray(Y0), data=data, steps=steps)
    go_on = lambda steps, result: bl.run(
        solver, data=data, steps=steps, resume=result, options=bl.RunOptions(diagnose=True)
    )
    assert codes(go_on(100, begin(3000))) == ["x_rests"]
    assert "flat" not in codes(go_on(2, begin(100)))


def test_a_hinge_loss_whose_margins_are_met_is_named():
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(jax.nn.relu(1 - 3 * y))
    )
    start = jnp.zeros(2), jnp.zeros(2)
    (found,) = bl.run(
        bl.aid(problem, inner=0.5, adjoint=0.5, outer=0.05),
        *start,
        steps=100,
        options=bl.RunOptions(diagnose=True),
    ).diagnosis.findings
    assert found.code == "y_dead"
    assert "all margins are met" in found.sentence
