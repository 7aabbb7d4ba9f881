"""Evaluations of a whole data set: exact means, the state that they see, and the hooks that watch them."""

import csv
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import bilevel as bl
from run_options import with_options

RNG = np.random.default_rng(0)
A = RNG.normal(size=(50, 3))
B = A @ np.array([1.0, -2.0, 0.5]) + 0.1 * RNG.normal(size=50)
DATA = bl.Batch(inner=(A[:30], B[:30]), outer=(A[30:], B[30:]))
VALID = A[30:47], B[30:47]  # 17 rows, a prime number
X0, Y0 = jnp.zeros(3), jnp.zeros(3)


def inner(x, y, batch):
    return jnp.mean((batch[0] @ y - batch[1]) ** 2) + jnp.sum(jnp.exp(x) * y**2)


def outer(x, y, batch):
    errors = batch[0] @ y - batch[1]
    return jnp.mean(errors**2), {"off": jnp.mean(jnp.abs(errors))}


@pytest.fixture(scope="module")
def aid():
    return bl.aid(bl.Problem(inner=inner, outer=outer), inner=0.1, adjoint=0.1, outer=0.1)


@pytest.fixture(scope="module")
def path(aid):
    """The states after every step, from one run without hooks."""
    keep = lambda state, info: {"x": state.x, "y": state.y, "v": state.v}
    return bl.run(aid, X0, Y0, data=DATA, steps=24, record=keep).trace


def off(y):
    """The mean absolute error on the validation rows, by NumPy."""
    return np.mean(np.abs(VALID[0] @ y - VALID[1]))


def run(solver, hooks, steps=24, data=DATA, **asked):
    start = {} if isinstance(asked.get("resume"), bl.Result) else {"x0": X0, "y0": Y0}
    return bl.run(solver, **start, data=data, steps=steps, hooks=hooks, **with_options(asked))


class Restarts:
    """A loader like torch's: every `iter` begins at the first batch."""

    def __init__(self, size):
        self.size, self.begun = size, 0

    def __iter__(self):
        self.begun += 1
        return (tuple(a[i : i + self.size] for a in VALID) for i in range(0, 17, self.size))


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        (VALID, [5]),
        pytest.param(VALID, [None, 1, 99], marks=pytest.mark.slow),
        pytest.param({"a": VALID[0].astype(np.float32), "b": VALID[1]}, [4], marks=pytest.mark.slow),
        ([tuple(a[i : i + 5] for a in VALID) for i in (0, 5, 10, 15)], [None]),
        pytest.param(Restarts(4), [None], marks=pytest.mark.slow),
    ],
)
def test_the_mean_is_exact_for_all_ways_to_cut_the_rows(aid, path, data, sizes):
    function = lambda x, y, batch: outer(x, y, tuple(batch.values()) if isinstance(batch, dict) else batch)
    hooks = [bl.hooks.Evaluate(function, data, every=6, size=size, name=str(size)) for size in sizes]
    with jax.numpy_dtype_promotion("standard"):
        result = run(aid, hooks, every=4)
    assert list(result.probes["step"]) == [6, 12, 18, 24]
    states, rtol = path["y"][[5, 11, 17, 23]], 1e-6 if isinstance(data, dict) else 1e-12
    for size in sizes:
        np.testing.assert_allclose(result.probes[f"{size}/off"], [off(y) for y in states], rtol=rtol)
        squares = [np.mean((VALID[0] @ y - VALID[1]) ** 2) for y in states]
        np.testing.assert_allclose(result.probes[f"{size}/loss"], squares, rtol=rtol)


def test_a_loader_is_read_from_start_to_end_every_time(aid):
    loader = Restarts(6)
    run(aid, [bl.hooks.Evaluate(lambda x, y, batch: {"rows": batch[1][0]}, loader, every=8)])
    assert loader.begun == 1 + 3  # once for the check of the first batch


def test_evaluations_change_no_bit_of_the_run(aid, path):
    result = run(aid, [bl.hooks.Evaluate(outer, VALID, every=5, size=4)])
    np.testing.assert_array_equal(result.x, path["x"][-1])
    np.testing.assert_array_equal(result.y, path["y"][-1])


def test_the_function_sees_the_state_after_the_step(aid, path):
    def seen(x, y, *, v):
        return {name: value[i] for name, value in (("x", x), ("y", y), ("v", v)) for i in (0,)}

    result = run(aid, [bl.hooks.Evaluate(seen, every=8)])
    for name in ("x", "y", "v"):
        np.testing.assert_allclose(result.probes[name], path[name][[7, 15, 23], 0], rtol=1e-12)


def test_best_and_early_stopping_watch_it(aid, path):
    values = {step: abs(path["x"][step - 1][0] - path["x"][9][0]) for step in range(2, 25, 2)}
    there = jnp.asarray(path["x"][9][0])
    hooks = [
        best := bl.hooks.Best("far"),
        bl.hooks.EarlyStopping("far", patience=6),
        bl.hooks.Evaluate(lambda x, y: {"far": jnp.abs(x[0] - there)}, every=2),
    ]
    result = run(aid, hooks)
    assert min(values, key=values.get) == best.step == 10
    np.testing.assert_allclose(best.x, path["x"][9], rtol=1e-12)
    assert (result.status.code, result.steps) == (bl.Code.STOPPED, 16)
    assert list(result.probes["step"]) == list(range(2, 17, 2))


def test_a_probe_beside_it_is_on_the_same_rows(aid):
    late = lambda state, info: None if info.outer_value > 1 else {"late": 1.0}
    hooks = [bl.hooks.Best("off"), bl.hooks.Best("late"), bl.hooks.Evaluate(outer, VALID, every=8)]
    result = run(aid, hooks, every=4, probe=late)
    assert list(result.probes["step"]) == sorted({*result.probes["step"]})
    assert {8, 16, 24} <= {*result.probes["step"]}
    measured = np.isfinite(result.probes["off"])
    assert list(result.probes["step"][measured]) == [8, 16, 24]


def test_a_name_that_is_not_measured_is_refused_at_the_first_chunk(aid):
    hooks = [bl.hooks.Best("of"), bl.hooks.Evaluate(outer, VALID, every=20, name="valid")]
    with pytest.raises(bl.RunError, match=r"no 'of': .*valid/loss, valid/off") as raised:
        run(aid, hooks, every=4)
    assert raised.value.result.steps == 4


def test_a_run_that_is_cut_and_resumed_evaluates_at_the_same_steps(aid):
    make = lambda: [bl.hooks.Evaluate(outer, VALID, every=5, size=4), bl.hooks.Best("off")]
    whole, hooks = run(aid, make()), make()
    half = run(aid, hooks, steps=13)
    joined = run(aid, hooks, steps=11, resume=half)
    assert list(joined.probes["step"]) == [5, 10, 15, 20]
    jax.tree.map(np.testing.assert_array_equal, joined.probes, whole.probes)
    np.testing.assert_array_equal(joined.x, whole.x)


@pytest.mark.slow
def test_a_run_in_a_folder_keeps_its_evaluations(aid, tmp_path):
    pytest.importorskip("orbax.checkpoint")

    def go(steps, function=outer):
        hooks = [bl.hooks.Evaluate(function, VALID, every=5), bl.hooks.EarlyStopping("off", patience=500)]
        return run(aid, hooks, steps, checkpoint=tmp_path, resume="auto")

    go(13)
    found, whole = go(24), run(aid, [bl.hooks.Evaluate(outer, VALID, every=5)])
    jax.tree.map(np.testing.assert_array_equal, found.probes, whole.probes)


@pytest.mark.slow
def test_a_run_that_an_evaluation_ended_has_ended(aid, tmp_path):
    pytest.importorskip("orbax.checkpoint")

    def go(function):
        hooks = [bl.hooks.Evaluate(function, every=2), bl.hooks.EarlyStopping("far", patience=4)]
        return run(aid, hooks, checkpoint=tmp_path, resume="auto").steps

    worse, better = lambda x, y: {"far": -x[0]}, lambda x, y: {"far": x[0]}
    ended = go(worse)
    assert go(worse) == ended < 24
    assert go(better) > ended  # another evaluation may not have ended it


@pytest.mark.slow
def test_a_model_is_evaluated_with_its_state():
    """The state holds the running mean of the batches; it is evaluated, and not changed."""

    def normed(x, y, batch, *, state):
        return (
            jnp.mean((batch[0] @ y - batch[1] - state["mean"]) ** 2),
            {},
            {"mean": 0.9 * state["mean"] + 0.1},
        )

    def of_state(x, y, batch, *, state):
        return {"mean": state["mean"], "off": jnp.mean(batch[0] @ y - batch[1] - state["mean"])}

    problem = bl.Problem(inner=normed, outer=outer)
    solver = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1)
    hooks = [bl.hooks.Evaluate(of_state, VALID, every=3, size=5), best := bl.hooks.Best("mean")]
    result = run(solver, hooks, 9, model_state={"mean": jnp.asarray(0.0)})
    means = 1 - 0.9 ** np.array([3, 6, 9])
    np.testing.assert_allclose(result.probes["mean"], means, rtol=1e-12)
    np.testing.assert_allclose(result.probes["off"][-1], np.mean(VALID[0] @ result.y - VALID[1]) - means[-1])
    np.testing.assert_allclose(best.model_state["mean"], means[0], rtol=1e-12)


@pytest.mark.slow
def test_keys_differ_between_batches_and_not_between_evaluations(aid):
    def drawn(x, y, batch, *, key, rows, v=None):
        return {"first": rows[0], "weighted": jnp.mean(W[rows]), "drawn": jax.random.uniform(key)}

    W = jnp.arange(17.0) ** 2
    data = {"by 5": (VALID, 5), "loader": (Restarts(5), None), "whole": (VALID, None)}
    hooks = [bl.hooks.Evaluate(drawn, d, every=12, size=n, name=name) for name, (d, n) in data.items()]
    probes = run(aid, hooks).probes
    for name in data:
        np.testing.assert_allclose(probes[f"{name}/weighted"], np.mean(np.arange(17) ** 2))
        assert len({*probes[f"{name}/drawn"]}) == 1
    assert probes["by 5/first"][0] == probes["loader/first"][0] == (0 * 5 + 5 * 5 + 10 * 5 + 15 * 2) / 17
    assert len({probes[f"{name}/drawn"][0] for name in data}) == 2  # the loader has the batches of "by 5"


def test_it_is_compiled_once_and_follows_the_numbers_that_it_reads(aid):
    traced, factor = [], [1.0]

    def times(x, y, batch):
        traced.append(1)
        return {"times": factor[0] * jnp.mean(batch[0])}

    def double(event):
        factor[0] = 2.0 if event.step >= 16 else 1.0

    result = run(aid, [bl.hooks.Evaluate(times, VALID, every=4, size=5), double])
    expected = np.mean(VALID[0]) * np.array([1.0, 1.0, 1.0, 1.0, 2.0, 2.0])
    np.testing.assert_allclose(result.probes["times"], expected, rtol=1e-12)
    assert len(traced) == 4  # a program for the batches, and one for the last of them; both again at step 20


def test_a_run_that_returns_to_an_earlier_step_forgets_later_evaluations(aid, path):
    norm = bl.run(aid, X0, Y0, data=DATA, steps=24).trace["hypergradient_norm"]
    tol = float(np.sort(norm)[3])
    met = int(np.flatnonzero(norm <= tol)[0]) + 1
    assert met % 12
    result = run(aid, [bl.hooks.Evaluate(outer, VALID, every=12)], tol=tol)
    assert result.steps == met
    assert list(result.probes.get("step", [])) == [12] * (met > 12)


def test_files_have_the_numbers_at_the_last_step_before_them(aid, tmp_path):
    csv_file, lines = bl.hooks.CSV(tmp_path / "a.csv", thin=7), bl.hooks.JSONLines(tmp_path / "a.jsonl")
    make = lambda: [csv_file, lines, bl.hooks.Evaluate(outer, VALID, every=6)]
    half = run(aid, make(), steps=8)
    result = run(aid, make(), steps=10, resume=half)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(18))
    assert {row["step"]: row["off"] for row in rows if "off" in row} == {
        step - 1: value for step, value in zip(result.probes["step"], result.probes["off"], strict=True)
    }
    with (tmp_path / "a.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["step"]) for row in table] == [0, 5, 7, 11, 14, 17]
    assert [row["off"] != "" for row in table] == [False, True, False, True, False, True]
    assert float(table[1]["off"]) == result.probes["off"][0]
    assert all(float(row["outer_value"]) for row in table)


def test_tensorboard_has_the_numbers(aid, tmp_path):
    pytest.importorskip("tensorboardX")
    written = []
    board = bl.hooks.TensorBoard(tmp_path)
    board._make = lambda *_, **__: type(
        "Writer", (), {"add_scalar": lambda _, *row: written.append(row), "flush": int, "close": int}
    )()
    result = run(aid, [board, bl.hooks.Evaluate(outer, VALID, every=12)])
    assert [row for row in written if row[0] == "off"] == [
        ("off", result.probes["off"][0], 11),
        ("off", result.probes["off"][1], 23),
    ]


def test_the_live_view_and_the_result_show_its_course(aid):
    console = Console(file=io.StringIO(), force_terminal=True, width=120, record=True)
    live = bl.hooks.Live(console=console)
    result = run(aid, [live, bl.hooks.Evaluate(outer, VALID, every=6, name="valid")], every=2)
    first, *_, last = result.probes["valid/off"]
    lowest = min(result.probes["valid/off"])
    words = " ".join(console.export_text().split())
    assert f"valid/off {last:.4g} " in words
    assert f"from {first:.4g}, lowest {lowest:.4g}" in words
    assert f"valid/off {first:.4g} → {last:.4g}" in " ".join(str(result).split())


@pytest.mark.slow
def test_a_meta_learner_adapts_to_tasks_that_it_has_not_seen():
    centers = jnp.asarray(RNG.normal(size=(9, 1, 2)))
    away = lambda x, y, center: 0.5 * jnp.sum((y - center) ** 2)
    solver = bl.maml(bl.Problem(inner=away, outer=away), inner=0.5, outer=0.1, inner_steps=2)

    def after(x, y, tasks):
        adapted = solver.adapt(x, tasks)
        return {"far": jnp.mean(jax.vmap(away, (None, 0, 0))(x, adapted, tasks.outer))}

    new = bl.Batch(inner=centers[4:], outer=centers[4:])
    hooks = [bl.hooks.Evaluate(after, new, every=5, size=3)]
    x0 = jnp.zeros((1, 2))
    data = bl.Batch(inner=centers[:4], outer=centers[:4])
    result = bl.run(solver, x0, x0, data=data, steps=5, hooks=hooks)
    expected = np.mean([0.5 * np.sum((0.25 * (np.asarray(result.x) - c)) ** 2) for c in centers[4:]])
    np.testing.assert_allclose(result.probes["far"], [expected], rtol=1e-10)


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            dict(function=3),
            TypeError,
            r"function must be a function of \(x, y, batch\), which may ask for the key",
        ),
        (dict(function=lambda x, y: {}), TypeError, r"function must be a function of \(x, y, batch\)"),
        (
            dict(function=lambda x, y, b, *, w: {}),
            TypeError,
            r"keywords v, state, key, rows, not .*: pass e.g.",
        ),
        (dict(data=None), TypeError, r"function must be a function of \(x, y\), as there are no data"),
        (dict(every=0), ValueError, "every must be a whole number of at least 1, not 0"),
        (dict(size=0), ValueError, "size must be a whole number of at least 1, not 0"),
        (dict(name=""), TypeError, "name must be a text that is not empty"),
        (
            dict(data=(A, B[:2]), size=4),
            ValueError,
            "every array of data must have one row.*rows are 2, 50: give",
        ),
        (dict(data=(A, 3.0), size=4), ValueError, "rows are 50, none"),
        (dict(data=np.zeros((0, 2)), size=4), ValueError, "rows are 0: give"),
        (dict(data="valid"), TypeError, "data is a str"),
        (
            dict(data=iter([VALID])),
            TypeError,
            "data is an iterator .* read only once: pass the loader itself",
        ),
        (
            dict(data=bl.epochs(DATA, 4)),
            TypeError,
            r"data is a stream \(Minibatches\).*pass the arrays themselves",
        ),
        (dict(data=[A, B]), TypeError, "a list of arrays, which may be .*: pass a tuple of arrays"),
        (dict(data=[VALID], size=4), ValueError, "size=4 cuts arrays, but data is a loader.*: leave it out"),
    ],
)
def test_bad_arguments_are_refused_when_it_is_made(given, error, message):
    given = dict(function=outer, data=VALID, every=5) | given
    with pytest.raises(error, match=message):
        bl.hooks.Evaluate(given.pop("function"), given.pop("data"), **given)


def test_a_sweep_refuses_it(aid):
    with pytest.raises(TypeError, match=r"bl\.hooks\.Evaluate follows one run and cannot follow the lanes"):
        bl.sweep([aid], X0, Y0, data=DATA, steps=2, hooks=[bl.hooks.Evaluate(outer, VALID, every=1)])


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (
            [(lambda x, y, b, *, state: outer(x, y, b), VALID)],
            "asks for `state`, but the run has none: pass model_",
        ),
        (
            [(lambda x, y, b: {"a": b[0]}, VALID)],
            r"real scalars by name, but 'a' is float64\[17, 3\]: reduce it",
        ),
        ([(lambda x, y, b: {"a": jnp.complex64(1j)}, VALID)], "real scalars by name, but 'a' is complex"),
        ([(lambda x, y, b: {3: x[0]}, VALID)], "real scalars by name, but 3 is"),
        ([(lambda x, y, b: {"step": x[0]}, VALID)], 'a probe\'s "step" is the step'),
        ([(lambda x, y, b: x @ b[0], VALID)], "a hook raised TypeError"),
        ([(outer, [])], "the data of bl.hooks.Evaluate is a loader without a batch"),
        ([(outer, VALID), (outer, VALID)], "two hooks measure 'loss': pass name= to bl.hooks.Evaluate"),
        ([(lambda x, y, b: None, VALID)], "real scalars by name, but 'loss' is None"),
        ([(lambda x, y, b: {}, VALID)], "real scalars by name, but 'loss' is {}"),
        ([(lambda x, y, b: (x[0], y[0]), VALID)], r"real scalars by name, but 'loss' is \(.*: reduce it"),
        (
            [(lambda x, y, b: (x[0], {"loss": y[0]}), VALID)],
            'a loss, and a metric called "loss" too: return one',
        ),
        ([(lambda x, y, b: {"a": "b"}, VALID)], "real scalars by name, but 'a' is 'b'"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(aid, hooks, message):
    hooks = [bl.hooks.Evaluate(function, data, every=5) for function, data in hooks]
    with pytest.raises(bl.RunError, match=message) as raised:
        run(aid, hooks)
    assert raised.value.result.steps == 0


@pytest.mark.slow
def test_a_method_without_v_has_none_to_evaluate(aid):
    itd = bl.itd(aid.problem, inner=0.1, outer=0.1)
    need, may = lambda x, y, *, v: {"v": v[0]}, lambda x, y, *, v=None: {"v": x[0] if v is None else v[0]}
    with pytest.raises(bl.RunError, match="asks for `v`, but ITD has none: leave it out, or take a method"):
        run(itd, [bl.hooks.Evaluate(need, every=4)])
    result = run(itd, [bl.hooks.Evaluate(may, every=24)])
    assert result.probes["v"] == result.x[0]


def test_a_column_of_the_trace_is_not_measured_twice(aid):
    hooks = [bl.hooks.Evaluate(lambda x, y: {"outer_value": x[0]}, every=8)]
    with pytest.raises(
        bl.RunError, match="'outer_value', which is also a column of the trace: pass name= to it"
    ):
        run(aid, hooks)
