"""What readers with fresh eyes broke, each as the smallest run that showed it."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl

X0, Y0 = jnp.ones(2), jnp.zeros(2)
Q = bl.problems.quadratic(kappa=4.0)
STEP = 1 / Q.L
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(12, 2))
DATA = bl.Batch(inner=ROWS, outer=ROWS)


def inner(x, y, a):
    return 0.5 * jnp.mean((a @ y - 1.0) ** 2) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def outer(x, y, a):
    return 0.5 * jnp.mean((a @ y - 2.0) ** 2)


FIT = bl.Problem(inner=inner, outer=outer)


def fit(beta=0.1):
    return bl.soba(FIT, inner=0.1, adjoint=0.1, outer=beta)


@pytest.mark.slow
def test_a_sweep_s_data_may_differ_by_seed():
    order = lambda seed: bl.epochs(bl.Batch(inner=ROWS + seed, outer=ROWS), 6, seed=seed)
    swept = bl.sweep(fit(), X0, Y0, steps=10, data=order, seeds=[0, 1])
    for i in (0, 1):
        alone = bl.run(fit(), X0, Y0, steps=10, data=order(i), seed=i)
        np.testing.assert_allclose(swept[i].x, alone.x, rtol=1e-10)
    assert not np.allclose(swept[0].x, swept[1].x)


@pytest.mark.slow
def test_a_loader_may_refill_its_buffer():
    parts = [ROWS[3 * (k % 4) : 3 * (k % 4) + 3] for k in range(40)]

    def refilling():
        buffer = np.empty((3, 2))
        for part in parts:
            buffer[:] = part
            yield bl.Batch(inner=buffer, outer=buffer)

    fresh = [bl.Batch(inner=part.copy(), outer=part.copy()) for part in parts]
    a, b = (bl.run(fit(), X0, Y0, steps=40, data=data) for data in (refilling(), fresh))
    np.testing.assert_array_equal(a.trace["outer_value"], b.trace["outer_value"])


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, 1, 10, 400])
def test_a_tolerance_that_was_met_before_the_run_broke_was_met(every):
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: 0.5 * jnp.sum(y**2)
    )
    solver = bl.aid(problem, inner=0.5, adjoint=0.5, outer=25.0)
    result = bl.run(solver, 1e-3 * X0, 1e-3 * X0, steps=600, tol=2e-3, options=bl.RunOptions(every=every))
    assert (result.status.code, result.steps) == (bl.Code.CONVERGED, 1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [fit, lambda: bl.tuning_free(FIT), lambda: bl.solvers.s_tfbo(FIT)])
def test_an_estimate_of_exactly_zero_before_v_has_moved_is_not_convergence(make):
    result = bl.run(make(), X0, Y0, steps=5, data=DATA, tol=1e-9)
    assert result.trace["hypergradient_norm"][0] == 0  # f does not contain x, and v starts at zero
    assert result.steps == 5


def test_minibatches_refuse_rows_that_they_would_drop():
    with pytest.raises(ValueError, match="leave these out"):
        bl.epochs(bl.Batch(inner=ROWS, rows=bl.Levels(inner=np.arange(12))), 3)


def test_best_begins_anew_with_a_new_run():
    best = bl.hooks.Best()
    bl.run(fit(), X0, Y0, steps=50, data=DATA, options=bl.RunOptions(every=10), hooks=[best])
    bl.run(fit(1e-9), X0, Y0, steps=10, data=DATA, options=bl.RunOptions(every=5), hooks=[best])
    assert best.step <= 10


@pytest.mark.slow
def test_a_position_is_copied_when_it_is_taken():
    class Live:
        def __init__(self):
            self.state = {"at": 0}

        def __iter__(self):
            return self

        def __next__(self):
            k = self.state["at"]
            self.state["at"] += 1
            part = ROWS[k % 12 : k % 12 + 1]
            return bl.Batch(inner=part, outer=part)

        def get_state(self):
            return self.state

        def set_state(self, state):
            self.state = dict(state)

    whole = bl.run(fit(), X0, Y0, steps=20, data=Live())
    half = bl.run(fit(), X0, Y0, steps=8, data=Live())
    for _ in "ab":
        rest = bl.run(fit(), steps=12, data=Live(), resume=half)
        np.testing.assert_array_equal(rest.x, whole.x)


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_see_it")
def test_resuming_with_another_order_or_rule_is_refused():
    half = bl.run(fit(), X0, Y0, steps=5, data=bl.epochs(DATA, 4))
    for other in (bl.epochs(DATA, 6), bl.epochs(DATA, 4, seed=1), bl.iid(DATA, 4)):
        with pytest.raises(ValueError, match="resume= is of another run"):
            bl.run(fit(), steps=5, data=other, resume=half)
    with jax.numpy_dtype_promotion("standard"):
        adam = bl.run(bl.aid(FIT, inner=0.1, adjoint=0.1, outer=optax.adam(0.1)), X0, Y0, steps=3, data=DATA)
        for rule in (optax.nadam(0.1), optax.adamw(0.1), optax.sgd(0.1, momentum=0.9)):
            with pytest.raises(ValueError, match="its solver was"):
                bl.run(bl.aid(FIT, inner=0.1, adjoint=0.1, outer=rule), steps=3, data=DATA, resume=adam)
        assert (
            bl.run(
                bl.aid(FIT, inner=0.1, adjoint=0.1, outer=optax.adam(0.05)), steps=3, data=DATA, resume=adam
            ).steps
            == 6
        )


@pytest.mark.slow
def test_a_sweep_sees_memories_model_states_and_warm_ups_break():
    big = bl.Problem(
        inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.float32(1e25) * jnp.sum(x + 0 * y)
    )
    start = jnp.ones(2, jnp.float32), jnp.zeros(2, jnp.float32)
    swept = bl.sweep(bl.itd(big, inner=0.1, outer=optax.rmsprop(1e-3)), starts=[start, start], steps=5)
    assert {status.variable for status in swept.status} == {"memory of the outer rule"}

    def grows(x, y, *, state):
        return jnp.sum((y - x) ** 2), {}, state * 1e200

    problem = bl.Problem(inner=grows, outer=lambda x, y: jnp.sum(y**2))
    swept = bl.sweep(
        bl.itd(problem, inner=0.1, outer=0.1), X0, Y0, steps=5, seeds=[0, 1], model_state=jnp.ones(())
    )
    assert {(status.code, int(steps)) for status, steps in zip(swept.status, swept.steps, strict=True)} == {
        (bl.Code.DIVERGED, 1)
    }
    assert np.all(np.isfinite(swept.run.model))

    solvers = [bl.aid(Q.problem, inner=alpha * STEP, adjoint=STEP, outer=0.1) for alpha in (1.0, 50.0)]
    swept = bl.sweep(solvers, X0, Y0, steps=5, warmup=1000)
    alone = bl.run(solvers[1], X0, Y0, steps=5, warmup=1000)
    assert swept.status[0].code is bl.Code.COMPLETED
    assert swept.status[1].step == alone.status.step
    assert "warm-up step" in swept.status[1].message
    assert np.all(np.isfinite(swept[1].y))


@pytest.mark.slow
def test_a_sweep_checks_its_metric_before_the_work_and_names_what_broke_first():
    calls = []
    for metric in ("outer/acc", lambda x, y: x):
        with pytest.raises(ValueError, match=r"choose from|one number"):
            bl.sweep(fit(), X0, Y0, steps=5, data=DATA, metric=metric, hooks=[calls.append])
    assert not calls
    only_v = bl.sweep(
        bl.soba(FIT, inner=0.1, adjoint=50.0, outer=1e-9), X0, Y0, steps=2000, data=DATA, seeds=[0, 1]
    )
    assert {status.variable for status in only_v.status} == {"v"}

    class Failing(bl.hooks.Hook):
        def begin(self, event):
            raise OSError("no disk")

        def __call__(self, event): ...

    with pytest.raises(bl.RunError, match="no disk") as failure:
        bl.sweep(fit(), X0, Y0, steps=5, data=DATA, hooks=[Failing()])
    assert isinstance(failure.value.__cause__, OSError)


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["device", "host", "off"])
def test_probes_keep_values_and_odd_ones_lose_nothing(replay):
    odd = iter([{"x": [[1], [1, 2]]}, {"x": "word"}, {"x": 3.0}])
    result = bl.run(
        fit(),
        X0,
        Y0,
        steps=6,
        data=DATA,
        options=bl.RunOptions(every=2, snapshots=replay, probe=lambda s, i: {"x": s.x}),
    )
    np.testing.assert_array_equal(result.probes["x"][-1], result.x)
    assert bl.run(
        fit(),
        X0,
        Y0,
        steps=6,
        data=DATA,
        options=bl.RunOptions(every=2, probe=lambda s, i: next(odd)),
    ).probes["x"].shape == (3,)


def test_hooks_cannot_spoil_the_trace_and_all_of_them_see_an_event(tmp_path):
    def spoil(event):
        event.trace.pop("outer_value")

    result = bl.run(fit(), X0, Y0, steps=6, data=DATA, options=bl.RunOptions(every=2), hooks=[spoil])
    assert len(result.trace["outer_value"]) == 6

    def fails(event):
        if event.step == 4:
            raise OSError("full")

    path = tmp_path / "log.jsonl"
    with pytest.raises(bl.RunError) as failure:
        bl.run(
            fit(),
            X0,
            Y0,
            steps=8,
            data=DATA,
            options=bl.RunOptions(every=2),
            hooks=[fails, bl.hooks.JSONLines(path)],
        )
    bl.run(fit(), steps=4, data=DATA, resume=failure.value.result, hooks=[bl.hooks.JSONLines(path)])
    assert len(path.read_text().splitlines()) == 8
    with pytest.raises(bl.RunError, match="a hook raised"):
        bl.run(fit(), X0, Y0, steps=6, data=DATA, hooks=[lambda event: bl.hooks.Stop("why", step="a")])


def test_errors_solvers_and_results_can_be_pickled():
    solver = bl.aid(Q.problem, inner=STEP, adjoint=STEP, outer=0.1)
    result = bl.run(solver, X0, Y0, steps=3)
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.x, result.x)
    problem = pickle.loads(pickle.dumps(Q.problem))
    assert float(problem.f(X0, Y0)) == float(Q.problem.f(X0, Y0))
    error = pickle.loads(pickle.dumps(bl.RunError("broke", result)))
    assert (str(error), error.result.steps) == ("broke", 3)


@pytest.mark.slow
def test_a_batch_that_does_not_fit_ends_the_run_with_the_steps_before_it():
    bad = bl.Batch(inner=np.ones((3, 7)), outer=np.ones((3, 7)))
    good = bl.Batch(inner=ROWS[:3], outer=ROWS[:3])
    for replay in ("device", "host", "off"):
        with pytest.raises(bl.RunError, match="an objective raised") as failure:
            bl.run(
                fit(),
                X0,
                Y0,
                steps=30,
                options=bl.RunOptions(every=20, snapshots=replay),
                data=[good] * 13 + [bad],
            )
        result = failure.value.result
        assert (result.steps, len(result.trace["outer_value"]), int(result.run.step)) == (13, 13, 13)


def test_what_is_passed_in_survives_a_donated_start():
    x0, y0 = jnp.ones(2), jnp.zeros(2)
    solver = bl.aid(Q.problem, inner=STEP, adjoint=STEP, outer=0.1)
    run = bl.start(solver, x0, y0)
    jax.jit(lambda run: bl.scan(solver, run, steps=2)[0], donate_argnums=0)(run)
    np.testing.assert_array_equal(x0 + y0, 1.0)


@pytest.mark.slow
def test_objectives_and_samplers_with_one_seed_have_different_keys():
    seen = {}

    def noting(x, y, a, *, key):
        seen["rows"] = jax.random.randint(key, (4,), 0, 12)
        return inner(x, y, a)

    problem = bl.Problem(inner=noting, outer=outer)
    record = lambda state, info, batch: {"rows": batch.rows.inner, "key": jax.random.key_data(batch.key)}
    data = bl.iid(DATA, bl.Batch(4, None), seed=0)
    result = bl.run(bl.itd(problem, inner=0.1, outer=0.1), X0, Y0, steps=4, data=data, seed=0, record=record)
    for k in range(4):
        for level in (0, 1):
            key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(result.trace["key"][k])), level)
            drawn = np.asarray(jax.random.randint(key, (4,), 0, 12))
            assert not any(np.array_equal(drawn, rows) for rows in result.trace["rows"])


def test_independent_draws_of_a_full_batch_have_keys_of_their_own():
    def noisy(x, y, *, key):
        return jnp.sum((y - x) ** 2) + jnp.sum(y) * jax.random.normal(key, (), y.dtype)

    problem = bl.Problem(inner=noisy, outer=lambda x, y: jnp.sum(y**2))
    draws = {}
    for batches in ("shared", "independent"):
        solver = bl.soba(problem, inner=0.1, adjoint=0.1, outer=0.1, batches=batches)
        run = bl.start(solver, X0, Y0)
        from bilevel.batch import draws as drawn
        from bilevel.loop.data.streams import FullBatch, draw
        from bilevel.loop.state import dress

        batch = dress(solver, run, draw(FullBatch(None), (), solver.draws)[1])
        draws[batches] = {
            tuple(np.asarray(jax.random.key_data(drawn(batch)[i].key)).tolist()) for i in range(3)
        }
    assert (len(draws["shared"]), len(draws["independent"])) == (1, 3)


@pytest.mark.slow
def test_counting_sees_the_model_state_advance():
    def stiffening(x, y, *, state):
        return 0.5 * state * jnp.sum((y - x) ** 2), {}, 0.5 * state

    problem = bl.Problem(inner=stiffening, outer=lambda x, y: jnp.sum(y**2))
    solver = bl.hoag(problem, inner=0.5, outer=0.01, tol=lambda k: 1e-3 + 0 * k)
    run = bl.start(solver, X0, Y0, model_state=jnp.ones(()))
    _, trace = bl.scan(solver, run, steps=5)
    counted = bl.oracle_calls(solver, run, steps=5)
    assert counted.gradients_g == int(np.sum(trace["inner_steps"])) + 5


@pytest.mark.slow
def test_a_variable_that_has_run_away_is_blamed_for_the_loss_that_overflows():
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: 0.5 * jnp.sum((y - 1) ** 2)
    )
    start = jnp.ones(2, jnp.float32), jnp.zeros(2, jnp.float32)
    for alpha in (2.05, 2.5):
        result = bl.run(bl.itd(problem, inner=alpha, outer=1e-9), *start, steps=3000)
        assert result.status.code is bl.Code.DIVERGED
        assert "the inner step size" in result.status.message
