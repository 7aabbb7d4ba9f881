"""The host driver: outcomes, traces, probes, stopping, interruption."""

import io
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

import bilevel as bl
from bilevel.loop.chunks import GROWTH, SECONDS, Pace

X0 = jnp.ones(2)


@jax.jit
def take_step(solver, state):
    return solver.step(state)


@pytest.mark.slow
def test_the_trace_is_plain_numpy_and_says_what_happened(q, aid):
    result = bl.run(aid, X0, jnp.zeros(2), steps=50, options=bl.RunOptions(every=7))
    assert result.status.code is bl.Code.COMPLETED
    assert "resume" in result.status.message
    assert set(result.trace) == {"outer_value", "hypergradient_norm", "adjoint_residual"}
    state = aid.init(X0, jnp.zeros(2))
    for k in range(50):
        state, info = take_step(aid, state)
        np.testing.assert_allclose(result.trace["outer_value"][k], info.outer_value, rtol=1e-12)
        np.testing.assert_allclose(
            result.trace["hypergradient_norm"][k], np.linalg.norm(info.hypergradient), rtol=1e-12
        )
    assert all(type(values) is np.ndarray for values in result.trace.values())
    np.testing.assert_allclose(result.x, state.x, rtol=1e-12)
    assert "completed after 50 steps" in repr(result)


def test_record_keeps_what_it_is_told_of_every_step(q, aid):
    result = bl.run(
        aid,
        X0,
        jnp.zeros(2),
        steps=9,
        options=bl.RunOptions(every=4),
        record=lambda state, info: {"x": state.x},
    )
    assert result.trace["x"].shape == (9, 2)
    np.testing.assert_array_equal(result.trace["x"][-1], result.x)
    assert "outer_value" in result.trace


@pytest.mark.slow
def test_a_probe_is_called_once_a_chunk_with_the_state_and_info_of_that_step(q, aid):
    seen = []

    def probe(state, info):
        seen.append((state, info))
        return {"distance": np.linalg.norm(state.x - q.solution)}

    result = bl.run(
        aid,
        X0,
        jnp.zeros(2),
        steps=10,
        options=bl.RunOptions(every=4, probe=probe),
    )
    np.testing.assert_array_equal(result.probes["step"], [4, 8, 10])
    assert result.probes["distance"].shape == (3,)
    for (_, info), k in zip(seen, (4, 8, 10), strict=True):
        np.testing.assert_allclose(
            np.linalg.norm(info.hypergradient), result.trace["hypergradient_norm"][k - 1], rtol=1e-14
        )
    np.testing.assert_array_equal(seen[-1][0].x, result.x)


def test_it_stops_at_the_tolerance(q, aid):
    result = bl.run(aid, X0, jnp.zeros(2), steps=100_000, tol=1e-6)
    assert result.status.code is bl.Code.CONVERGED
    assert result.steps < 100_000
    assert result.trace["hypergradient_norm"][-1] <= 1e-6
    assert "1e-06" in result.status.message
    assert len(result.trace["outer_value"]) == result.steps


@pytest.fixture(scope="module")
def linear(q):
    """Does not overflow before its variables do."""
    return bl.Problem(inner=q.g, outer=lambda x, y: q.m * jnp.sum(y))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "adjoint", "blamed", "level"), [(1.0, 1e3, "v", "adjoint"), (1e3, 1.0, "y", "inner")]
)
@pytest.mark.parametrize("every", [None, 1, 13])
def test_divergence_names_the_variable_and_the_step_and_returns_the_last_finite_state(
    q, linear, inner, adjoint, blamed, level, every
):
    solver = bl.aid(linear, inner=inner / q.L, adjoint=adjoint / q.L, outer=1e-3)
    result = bl.run(solver, X0, jnp.zeros(2), steps=5_000, options=bl.RunOptions(every=every))
    assert result.status.code is bl.Code.DIVERGED
    # independently: step by step until something is not finite
    state, k = solver.init(X0, jnp.zeros(2)), 0
    while True:
        after, info = take_step(solver, state)
        finite = {name: bool(jnp.all(jnp.isfinite(getattr(after, name)))) for name in "xyv"}
        if not all(finite.values()):
            break
        assert np.isfinite(info.outer_value)
        state, k = after, k + 1
    assert result.steps == result.status.step == k
    assert f"at step {k};" in result.status.message
    assert not finite[blamed]
    names = [name for name in "xyv" if not finite[name]]
    assert result.status.variable == blamed  # by the curvature of g, whatever broke with it
    assert result.status.message.startswith(" and ".join(names) + " became")
    assert level in result.status.message
    for a, b in zip(jax.tree.leaves(result.state), jax.tree.leaves(state), strict=True):
        assert np.all(np.isfinite(a))
        np.testing.assert_allclose(a, b, rtol=1e-10)
    assert all(len(values) == k for values in result.trace.values())


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, 1, 13])
def test_a_loss_that_overflows_first_is_blamed_on_the_variables_that_follow(q, every):
    solver = bl.aid(
        q.problem, inner=1.0 / q.L, adjoint=1e3 / q.L, outer=1e-3
    )  # f is quadratic in x: it overflows at 1e154
    result = bl.run(solver, X0, jnp.zeros(2), steps=5_000, options=bl.RunOptions(every=every))
    assert result.status.code is bl.Code.DIVERGED
    state, k = solver.init(X0, jnp.zeros(2)), 0
    while np.isfinite((out := take_step(solver, state))[1].outer_value):
        state, k = out[0], k + 1
    assert result.steps == result.status.step == k
    assert result.status.variable in "xv"
    assert "the outer objective's value became infinite" in result.status.message
    assert "about to follow" in result.status.message
    assert "adjoint step size" in result.status.message
    assert np.all(np.isfinite(result.trace["outer_value"]))


@pytest.mark.slow
def test_divergence_on_the_first_step_returns_the_start(q):
    problem = bl.Problem(outer=lambda x, y: jnp.sum(y) * jnp.inf, inner=q.g)
    result = bl.run(bl.itd(problem, inner=0.1, outer=0.1), X0, X0, steps=5)
    assert result.status.code is bl.Code.DIVERGED
    assert result.status.step == 0
    assert result.steps == 0
    np.testing.assert_array_equal(result.x, X0)


@pytest.mark.slow
def test_divergence_on_an_iterator_is_found_too(q):
    solver = bl.aid(q.problem, inner=1.0 / q.L, adjoint=1e3 / q.L, outer=1e-3)
    plain = bl.run(solver, X0, jnp.zeros(2), steps=5_000)
    fed = bl.run(
        solver,
        X0,
        jnp.zeros(2),
        steps=5_000,
        options=bl.RunOptions(every=50),
        data=(bl.Batch() for _ in range(10_000)),
    )
    assert fed.status == plain.status
    np.testing.assert_allclose(fed.x, plain.x, rtol=1e-10)


def test_an_exhausted_iterator_is_an_outcome_not_an_error(aid):
    result = bl.run(
        aid, X0, jnp.zeros(2), steps=10, options=bl.RunOptions(every=4), data=iter([bl.Batch()] * 6)
    )
    assert result.status.code is bl.Code.EXHAUSTED
    assert result.steps == 6
    assert "6 of 10" in result.status.message
    assert len(result.trace["outer_value"]) == 6


@pytest.mark.slow
def test_control_c_returns_what_there_is_so_far(aid):
    def probe(state, info):
        if not hasattr(probe, "step"):
            probe.step = True
        else:
            signal.raise_signal(signal.SIGINT)
        return {}

    result = bl.run(
        aid,
        X0,
        jnp.zeros(2),
        steps=100,
        options=bl.RunOptions(every=10, probe=probe),
    )
    assert result.status.code is bl.Code.INTERRUPTED
    assert result.steps == 20
    assert len(result.trace["outer_value"]) == 20
    resumed = bl.run(aid, steps=80, resume=result)
    whole = bl.run(aid, X0, jnp.zeros(2), steps=100, options=bl.RunOptions(every=10))
    np.testing.assert_array_equal(resumed.x, whole.x)


@pytest.mark.slow
def test_finite_optimizer_memory_is_not_required():
    """optax's plateau rule starts from an infinite best value: that is not divergence."""
    q = bl.problems.quadratic()
    outer = optax.chain(optax.sgd(0.1), optax.scale(1.0))
    memory = optax.GradientTransformation(lambda p: jnp.float64(jnp.inf), lambda g, s, p=None: (g, s))
    solver = bl.itd(q.problem, inner=1 / q.L, outer=optax.chain(memory, outer))
    assert bl.run(solver, X0, X0, steps=5).status.code is bl.Code.COMPLETED


def test_progress_is_silent_when_not_a_terminal(aid, capsys):
    bl.run(aid, X0, jnp.zeros(2), steps=10, progress=True)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal_shows_rate_value_norm_and_steps(aid, monkeypatch):
    screen = io.StringIO()
    terminal = lambda **_: Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("rich.console.Console", terminal)
    result = bl.run(aid, X0, jnp.zeros(2), steps=30, options=bl.RunOptions(every=10), progress=True)
    shown = screen.getvalue()
    assert "AID" in shown
    assert "30/30" in shown
    assert "it/s" in shown
    assert f"{result.trace['outer_value'][-1]:.4g}" in shown
    assert f"{result.trace['hypergradient_norm'][-1]:.2e}" in shown


def test_chunks_are_paced_by_the_clock():
    pace, lengths, clock = Pace(None), [], {"per step": 1e-5, "compile": 3.0}
    for compiled in (True, *[False] * 9):
        steps = pace.steps(10**15)
        lengths.append(steps)
        pace.took(steps, steps * clock["per step"] + (clock["compile"] if compiled else 0), compiled)
    assert lengths[:3] == [1, 1, GROWTH]  # what compiled says nothing; then it grows
    assert lengths[-1] == pytest.approx(SECONDS / clock["per step"], rel=0.01)
    clock["per step"] = 1e-2  # the machine, the loader or a loop inside the step became slower
    pace.took(100, 100 * 1e-2, False)
    assert pace.steps(10**15) == SECONDS / 1e-2
    assert Pace(1e-5, every=7).steps(100) == 7
    assert Pace(1e-5).steps(3) == 3


@pytest.mark.slow
def test_a_run_of_ever_so_many_steps_can_begin(aid):
    result = bl.run(aid, X0, jnp.zeros(2), steps=10**15, tol=1e-8)
    assert result.status.code is bl.Code.CONVERGED


def test_seconds_are_those_of_the_run(aid):
    began = time.perf_counter()
    result = bl.run(aid, X0, jnp.zeros(2), steps=5)
    assert 0 < result.seconds <= time.perf_counter() - began


@pytest.mark.slow
def test_equinox_modules_are_trees_like_any_other():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(3, "scalar", width_size=4, depth=1, key=jax.random.key(0), dtype=jnp.float64)
    params, static = eqx.partition(model, eqx.is_inexact_array)
    rng = np.random.default_rng(0)
    a, b = jnp.asarray(rng.normal(size=(8, 3))), jnp.asarray(rng.normal(size=8))

    def loss(params, rows):
        predict = jax.vmap(eqx.combine(params, static))
        return (predict(rows[0]) - rows[1]) ** 2

    problem = bl.Problem(
        inner=lambda x, y, rows: jnp.mean(jax.nn.sigmoid(x) * loss(y, rows)),
        outer=lambda x, y, rows: jnp.mean(loss(y, rows)),
    )
    solver = bl.aid(problem, inner=0.05, adjoint=0.05, outer=0.1)
    result = bl.run(solver, jnp.zeros(8), params, data=bl.Batch(inner=(a, b), outer=(a, b)), steps=20)
    assert type(result.y) is type(params)
    assert result.trace["outer_value"][-1] < result.trace["outer_value"][0]
