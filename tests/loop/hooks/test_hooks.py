"""Hooks: what they see, how they stop a run, and that nothing is lost when one fails."""

import csv
import json
import signal
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import bilevel as bl
from bilevel.loop.hooks.drawing import NOTEBOOK

X0, Y0 = jnp.ones(2), jnp.zeros(2)


@jax.jit
def take_step(solver, state):
    return solver.step(state)


def test_an_event_shows_the_step_the_state_the_info_and_the_rows_since_the_last(aid):
    seen = []
    result = bl.run(aid, X0, Y0, steps=10, options=bl.RunOptions(every=4), hooks=[seen.append])
    assert [event.step for event in seen] == [4, 8, 10]
    assert [event.first for event in seen] == [0, 4, 8]
    assert all(event.total == 10 and event.name == "AID" for event in seen)
    rows = np.concatenate([event.trace["outer_value"] for event in seen])
    np.testing.assert_array_equal(rows, result.trace["outer_value"])
    np.testing.assert_array_equal(seen[-1].state.x, result.x)
    for event in seen:
        norm = np.linalg.norm(event.info.hypergradient)
        np.testing.assert_allclose(norm, result.trace["hypergradient_norm"][event.step - 1], rtol=1e-13)


@pytest.mark.slow
def test_the_result_so_far_is_that_of_a_run_which_ended_there(aid):
    saved = []
    probe = lambda state, info: {"x": state.x[0]}
    result = bl.run(
        aid,
        X0,
        Y0,
        steps=9,
        options=bl.RunOptions(every=3, probe=probe),
        hooks=[lambda event: saved.append(event.so_far())],
    )
    assert [each.steps for each in saved] == [3, 6, 9]
    assert all(each.status.code is bl.Code.INTERRUPTED for each in saved)
    assert "Saved after 6 of 9 steps, while the run was under way" in saved[1].status.message
    np.testing.assert_array_equal(saved[1].trace["outer_value"], result.trace["outer_value"][:6])
    assert list(result.probes["step"]) == [3, 6, 9]  # looking at them did not take them away
    on = bl.run(aid, steps=3, resume=saved[1], options=bl.RunOptions(probe=probe))
    np.testing.assert_array_equal(on.x, result.x)
    np.testing.assert_array_equal(on.trace["outer_value"], result.trace["outer_value"])
    with pytest.raises(bl.RunError, match=r"only the events of bl\.run do"):
        bl.sweep(aid, X0, Y0, steps=2, hooks=[lambda event: event.so_far()])


def test_a_hook_that_comes_last_sees_what_all_others_have_done(aid):
    order = []

    class Last(bl.hooks.Hook):
        last = True

        def begin(self, event):
            order.append("last begins")

        def __call__(self, event):
            order.append(("last", event.step, list(event.so_far().probes["step"])))

        def end(self, result):
            order.append("last ends")

    class First(bl.hooks.Hook):
        def begin(self, event):
            order.append("first begins")

        def __call__(self, event):
            order.append("first")
            return bl.hooks.Stop("enough", step=1) if event.step == 4 else None

        def end(self, result):
            order.append("first ends")

    bl.run(
        aid,
        X0,
        Y0,
        steps=9,
        options=bl.RunOptions(every=2, probe=lambda state, info: {"one": 1.0}),
        hooks=[Last(), First()],
    )
    assert order == [
        *("first begins", "last begins", "first", ("last", 2, [2])),
        # It asked for a step before this chunk, so the run stays where it is.
        *("first", ("last", 4, [2, 4]), "first ends", "last ends"),
    ]


def test_a_hook_stops_the_run_with_its_reason(aid):
    stop = lambda event: bl.hooks.Stop("the cat sat on the keyboard") if event.step >= 8 else None
    result = bl.run(aid, X0, Y0, steps=100, options=bl.RunOptions(every=4), hooks=[stop])
    assert result.status.code is bl.Code.STOPPED
    assert "the cat sat" in result.status.message
    assert result.steps == len(result.trace["outer_value"]) == 8


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, 1, 7, 1000])
def test_a_tolerance_is_met_at_the_same_step_whatever_the_chunks(q, aid, every):
    result = bl.run(aid, X0, Y0, steps=500, options=bl.RunOptions(every=every), tol=1e-2)
    assert result.status.code is bl.Code.CONVERGED
    state, k = aid.init(X0, Y0), 0
    while True:  # independently, step by step
        state, info = take_step(aid, state)
        k += 1
        if np.linalg.norm(info.hypergradient) <= 1e-2:
            break
    assert result.steps == k
    assert len(result.trace["outer_value"]) == k
    np.testing.assert_allclose(result.x, state.x, rtol=1e-12)
    resumed = bl.run(aid, steps=50, resume=result)
    whole = bl.run(aid, X0, Y0, steps=k + 50)
    np.testing.assert_array_equal(resumed.x, whole.x)


def test_other_hooks_see_the_run_end_where_the_tolerance_ended_it(aid, tmp_path):
    seen, path = [], tmp_path / "log.jsonl"
    hooks = [seen.append, bl.hooks.JSONLines(path), bl.hooks.Tolerance(1e-6)]
    result = bl.run(aid, X0, Y0, steps=2000, options=bl.RunOptions(every=500), hooks=hooks)
    assert seen[-1].step == result.steps
    assert len(path.read_text().splitlines()) == result.steps
    np.testing.assert_array_equal(seen[-1].state.x, result.x)


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, 3, 50])
def test_early_stopping_counts_steps_not_chunks(every):
    values = [5.0, 4.0, 3.0, 3.5, 3.2, 2.9, 3.0, 3.0, 3.0, 3.0, 1.0]
    best = np.minimum.accumulate(values)
    table = jnp.asarray(values)

    def outer(x, y, *, rows):  # the k-th step sees the k-th value
        return table[rows[0]] + 0 * jnp.sum(x)

    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=outer)
    loader = [bl.Batch(rows=bl.Levels(None, jnp.array([k]))) for k in range(len(values))]
    solver = bl.itd(problem, inner=0.1, outer=0.1)
    stopping = bl.hooks.EarlyStopping(patience=4)
    result = bl.run(
        solver, X0, Y0, steps=len(values), data=loader, options=bl.RunOptions(every=every), hooks=[stopping]
    )
    assert result.status.code is bl.Code.STOPPED
    assert result.steps == 10  # the best, 2.9, came at step 6; four steps later nothing better had come
    assert stopping.best == best[9] == 2.9
    assert "step 6" in result.status.message


def test_best_keeps_the_state_with_the_best_metric(q):
    wild = bl.aid(
        q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=1.9 / q.L
    )  # overshoots, so that the last state is not the best
    best = bl.hooks.Best("hypergradient_norm")
    states = {}
    bl.run(
        wild,
        X0,
        Y0,
        steps=60,
        options=bl.RunOptions(every=5),
        hooks=[best, lambda event: states.update({event.step: event.state})],
    )
    norms = {k: float(jnp.linalg.norm(take_step(wild, s)[1].hypergradient)) for k, s in states.items()}
    assert best.step in states
    np.testing.assert_array_equal(best.x, states[best.step].x)
    assert np.isfinite(best.value)
    assert norms  # the run was seen


def test_json_lines_and_csv_hold_the_trace_and_go_on_when_resumed(aid, tmp_path):
    jsonl, table = tmp_path / "run.jsonl", tmp_path / "run.csv"
    hooks = lambda: [bl.hooks.JSONLines(jsonl), bl.hooks.CSV(table, thin=3)]
    half = bl.run(aid, X0, Y0, steps=7, options=bl.RunOptions(every=2), hooks=hooks())
    whole = bl.run(aid, steps=5, resume=half, hooks=hooks())
    lines = [json.loads(line) for line in jsonl.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(12))
    np.testing.assert_array_equal([line["outer_value"] for line in lines], whole.trace["outer_value"])
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [0, 3, 6, 9]
    np.testing.assert_array_equal(
        [float(row["outer_value"]) for row in rows], whole.trace["outer_value"][::3]
    )
    bl.run(aid, X0, Y0, steps=2, hooks=hooks())
    assert len(jsonl.read_text().splitlines()) == 2  # a new run begins a new file


def test_tensorboard_gets_every_scalar(aid, monkeypatch, tmp_path):
    written = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            assert purge_step is None  # of a new run
            written.append(folder)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def flush(self): ...
        def close(self): ...

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    result = bl.run(
        aid, X0, Y0, steps=10, options=bl.RunOptions(every=4), hooks=[bl.hooks.TensorBoard(tmp_path, thin=2)]
    )
    assert written[0] == str(tmp_path)
    values = {step: value for name, value, step in written[1:] if name == "outer_value"}
    assert values == {k: result.trace["outer_value"][k] for k in range(0, 10, 2)}


def test_tensorboard_that_is_not_installed_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"bilevel\[tensorboard\]"):
        bl.hooks.TensorBoard(tmp_path)


@pytest.mark.parametrize("replay", ["device", "host", "off"])
def test_a_hook_that_raises_ends_the_run_with_the_result_in_hand(aid, replay):
    def hook(event):
        if event.step == 8:
            raise OSError("disk full")

    with pytest.raises(bl.RunError, match="disk full") as failure:
        bl.run(
            aid,
            X0,
            Y0,
            steps=100,
            options=bl.RunOptions(every=4, snapshots=replay),
            hooks=[hook],
        )
    assert isinstance(failure.value.__cause__, OSError)
    result = failure.value.result
    assert result.status.code is bl.Code.FAILED
    assert result.steps == len(result.trace["outer_value"]) == 8
    resumed = bl.run(aid, steps=92, resume=result)
    np.testing.assert_array_equal(resumed.x, bl.run(aid, X0, Y0, steps=100).x)


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["device", "host"])
def test_an_objective_that_raises_while_it_runs_ends_the_run_with_the_result_in_hand(replay, monkeypatch):
    monkeypatch.setattr(
        "bilevel.loop.recovery.snapshots.REST", 0
    )  # a copy after every chunk, however slow they are
    calls = []

    def fail_at_thirty(value):
        calls.append(1)
        if len(calls) == 30:
            raise RuntimeError("the simulator crashed")
        return value

    def outer(x, y):
        value = jnp.sum((y - 1.0) ** 2)
        return value + 0 * jax.pure_callback(
            fail_at_thirty, jax.ShapeDtypeStruct((), value.dtype), jax.lax.stop_gradient(value)
        )

    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=outer)
    solver = bl.solvers.darts_first_order(problem, inner=0.1, outer=0.1)
    with pytest.raises(bl.RunError, match="an objective raised") as failure:
        bl.run(
            solver,
            X0,
            Y0,
            steps=100,
            options=bl.RunOptions(every=10, snapshots=replay),
        )
    result = failure.value.result
    assert 10 <= result.steps < 30
    assert result.steps % 10 == 0
    assert len(result.trace["outer_value"]) == result.steps
    whole = bl.run(solver, steps=100 - result.steps, resume=result)
    assert whole.steps == 100


def test_begin_and_end_are_called_once_even_if_the_run_fails(aid):
    class Hook(bl.hooks.Hook):
        def __init__(self):
            self.calls = []

        def begin(self, event):
            self.calls.append(("begin", event.step))

        def __call__(self, event):
            if event.step == 4:
                raise ValueError("no")

        def end(self, result):
            self.calls.append(("end", result.steps))

    hook = Hook()
    with pytest.raises(bl.RunError):
        bl.run(aid, X0, Y0, steps=10, options=bl.RunOptions(every=2), hooks=[hook])
    assert hook.calls == [("begin", 0), ("end", 4)]


@pytest.mark.slow
def test_probes_may_come_and_go_and_return_nothing(aid):
    def probe(state, info):
        step = probe.calls = getattr(probe, "calls", 0) + 1
        return {1: None, 2: {"a": 1.0}, 3: {"a": 2.0, "b": 5}}.get(step, {"b": 6})

    result = bl.run(
        aid,
        X0,
        Y0,
        steps=8,
        options=bl.RunOptions(every=2, probe=probe),
    )
    np.testing.assert_array_equal(result.probes["step"], [4, 6, 8])
    np.testing.assert_array_equal(result.probes["a"], [1.0, 2.0, np.nan])
    np.testing.assert_array_equal(result.probes["b"], [np.nan, 5, 6])


@pytest.mark.slow
def test_nested_records_join_over_chunks_and_resumes(q):
    tree = bl.Problem(inner=lambda x, y: q.g(x["a"], y), outer=lambda x, y: q.f(x["a"], y))
    solver = bl.aid(tree, inner=1 / q.L, adjoint=1 / q.L, outer=0.1)
    record = lambda state, info: {"x": state.x, "twice": {"y": 2 * state.y}}
    half = bl.run(solver, {"a": X0}, Y0, steps=6, options=bl.RunOptions(every=4), record=record)
    whole = bl.run(solver, steps=3, resume=half, record=record)
    assert whole.trace["x"]["a"].shape == (9, 2)
    np.testing.assert_array_equal(whole.trace["twice"]["y"][-1], 2 * whole.y)
    with pytest.raises(ValueError, match="resume with the same record"):
        bl.run(solver, steps=3, resume=half)
    with pytest.raises(ValueError, match="resume with the same record"):
        bl.run(solver, steps=3, resume=bl.run(solver, {"a": X0}, Y0, steps=2), record=record)


@pytest.mark.slow
def test_a_record_may_see_the_batch():
    data = bl.Batch(inner=jnp.arange(6.0), outer=jnp.arange(6.0))
    problem = bl.Problem(
        inner=lambda x, y, a: jnp.mean((a * y - x) ** 2), outer=lambda x, y, a: jnp.mean((y - a) ** 2)
    )
    record = lambda state, info, batch: {"first": batch.inner[0], "row": batch.rows.inner[0]}
    stream = bl.epochs(data, 2, seed=1)
    result = bl.run(
        bl.itd(problem, inner=0.01, outer=0.01),
        jnp.zeros(()),
        jnp.zeros(()),
        data=stream,
        steps=9,
        record=record,
    )
    np.testing.assert_array_equal(result.trace["first"], result.trace["row"])
    assert sorted(set(result.trace["row"])) != [0]


@pytest.mark.slow
def test_control_c_finishes_the_step_and_keeps_it(aid):
    def loader():
        for k in range(1000):
            if k == 17:
                signal.raise_signal(signal.SIGINT)
            yield bl.Batch()

    source = loader()
    result = bl.run(aid, X0, Y0, steps=1000, data=source, options=bl.RunOptions(prefetch=0))
    assert result.status.code is bl.Code.INTERRUPTED
    assert 17 <= result.steps <= 18
    assert len(result.trace["outer_value"]) == result.steps
    rest = bl.run(aid, steps=1000 - result.steps, data=source, resume=result)
    np.testing.assert_array_equal(rest.x, bl.run(aid, X0, Y0, steps=1000, data=[bl.Batch()] * 1000).x)


@pytest.mark.slow
def test_a_second_control_c_returns_at_once_what_is_whole(aid):
    def loader():
        for k in range(1000):
            if k == 17:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            yield bl.Batch()

    result = bl.run(
        aid,
        X0,
        Y0,
        steps=1000,
        data=loader(),
        options=bl.RunOptions(every=5, prefetch=0),
    )
    assert result.status.code is bl.Code.INTERRUPTED
    assert result.steps == 17  # within a loader, the steps before are whole
    assert len(result.trace["outer_value"]) == 17
    np.testing.assert_array_equal(result.x, bl.run(aid, X0, Y0, steps=17, data=[bl.Batch()] * 17).x)


@pytest.mark.usefixtures("as_users_see_it")
@pytest.mark.parametrize(
    ("hooks", "words"),
    [("progress", "list of functions"), ([3], "list of functions"), (None, "list of functions")],
)
def test_what_is_not_a_hook_is_refused(aid, hooks, words):
    with pytest.raises(TypeError, match=words):
        bl.run(aid, X0, Y0, steps=1, hooks=hooks)


def test_unknown_metrics_list_what_there_is(aid):
    with pytest.raises(bl.RunError, match="hypergradient_norm, outer_value") as failure:
        bl.run(aid, X0, Y0, steps=1, hooks=[bl.hooks.Best("accuracy")])
    assert failure.value.result.steps == 1
    with pytest.raises(ValueError, match='"min" or "max"'):
        bl.hooks.Best(mode="best")
    with pytest.raises(ValueError, match="patience"):
        bl.hooks.EarlyStopping(patience=0)


def test_progress_in_a_notebook_is_one_output_that_is_replaced(aid, monkeypatch):
    lines = []

    class Handle:
        def update(self, data, raw):
            lines.append(data["text/plain"])

    display = lambda data, raw, display_id: Handle()
    monkeypatch.setitem(
        sys.modules, "IPython", types.SimpleNamespace(display=types.SimpleNamespace(display=display))
    )
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(force_jupyter=True))
    result = bl.run(aid, X0, Y0, steps=30, options=bl.RunOptions(every=10), progress=True)
    assert all(f"{step}/30" in line for step, line in zip((0, 10, 30, 30), lines, strict=True))
    assert "compiling" in lines[0]
    assert max(map(len, lines)) <= NOTEBOOK + 1
    assert f"f {result.trace['outer_value'][-1]:.4g}" in lines[-1]
    assert 0 == lines[0].count("━") < lines[1].count("━") < lines[-1].count("━")
