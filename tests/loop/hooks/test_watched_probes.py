"""Hooks that watch what a probe returns, and probes that see the model's state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from run_options import with_options

X0, Y0 = jnp.ones(2), jnp.zeros(2)
PROBLEM = bl.Problem(
    inner=lambda x, y: 0.5 * jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 2.0) ** 2)
)


def distance(state, info):
    """Smallest in the middle of the run: x goes from 1 to 2."""
    return {"distance": abs(float(state.x[0]) - 1.7)}


@pytest.fixture(scope="module")
def aid():
    return bl.aid(PROBLEM, inner=0.5, adjoint=0.5, outer=0.05)


@pytest.fixture(scope="module")
def path(aid):
    """x after every step, from one plain run."""
    return bl.run(aid, X0, Y0, steps=60, record=lambda state, info: {"x": state.x}).trace["x"]


def best_look(path, steps):
    """The step of the smallest distance, and that distance, among the looks at these steps."""
    values = [abs(path[step - 1][0] - 1.7) for step in steps]
    return steps[int(np.argmin(values))], min(values)


@pytest.mark.parametrize("order", [1, -1])
def test_best_keeps_the_state_that_a_probe_likes_best(aid, path, order):
    best, seen = bl.hooks.Best("distance"), []
    hooks = [best, bl.hooks.Probe(distance), lambda event: seen.append(event.probes)][::order]
    result = bl.run(aid, X0, Y0, steps=60, options=bl.RunOptions(every=4), hooks=hooks)
    step, value = best_look(path, list(range(4, 61, 4)))
    assert step not in (4, 60)
    assert best.step == step
    np.testing.assert_allclose(best.value, value, rtol=1e-12)
    np.testing.assert_allclose(best.x, path[step - 1], rtol=1e-12)
    assert [each["distance"] for each in seen] == list(result.probes["distance"])


@pytest.mark.parametrize("order", [1, -1])
def test_early_stopping_counts_steps_since_a_probe_was_best(aid, path, order):
    steps = list(range(4, 61, 4))
    step, value = best_look(path, steps)
    stopping = bl.hooks.EarlyStopping("distance", patience=6)
    hooks = [stopping, bl.hooks.Probe(distance)][::order]
    result = bl.run(aid, X0, Y0, steps=60, options=bl.RunOptions(every=4), hooks=hooks)
    assert result.status.code is bl.Code.STOPPED
    assert result.steps == step + 8  # the first look that is at least 6 steps later
    assert stopping.best_step == step
    np.testing.assert_allclose(stopping.best, value, rtol=1e-12)


def test_a_resumed_run_goes_on_watching(aid, path):
    best = bl.hooks.Best("distance")
    given = dict(every=4, probe=distance, hooks=[best])
    half = bl.run(aid, X0, Y0, steps=8, **with_options(given))
    assert best.step == 8
    bl.run(aid, steps=52, resume=half, **with_options(given))
    assert best.step == best_look(path, list(range(4, 61, 4)))[0]


def test_a_run_in_a_folder_goes_on_watching(aid, path, tmp_path):
    pytest.importorskip("orbax.checkpoint")

    def go(steps, probe=distance):
        best, stopping = bl.hooks.Best("distance"), bl.hooks.EarlyStopping("distance", patience=6)
        given = dict(every=4, probe=probe, hooks=[stopping, best], checkpoint=tmp_path, resume="auto")
        return bl.run(aid, X0, Y0, steps=steps, **with_options(given)), best

    step, value = best_look(path, list(range(4, 61, 4)))
    go(step)
    result, best = go(60)
    assert (result.status.code, result.steps) == (bl.Code.STOPPED, step + 8)
    assert best.step == step
    np.testing.assert_allclose(best.value, value, rtol=1e-12)
    assert go(60)[0].steps == step + 8  # it has ended
    better = lambda state, info: {"distance": -float(state.x[0])}
    assert go(60, better)[0].steps > step + 8  # another probe may not have ended it


def test_a_probe_sees_the_step_at_which_a_tolerance_ended_the_run(aid):
    best, seen = bl.hooks.Best("norm"), []

    def probe(state, info):
        seen.append(1)
        return {"norm": float(jnp.linalg.norm(info.hypergradient))}

    result = bl.run(
        aid, X0, Y0, steps=500, options=bl.RunOptions(every=50, probe=probe), tol=1e-2, hooks=[best]
    )
    assert result.status.code is bl.Code.CONVERGED
    assert result.steps % 50
    assert list(result.probes["step"]) == [*range(50, result.steps, 50), result.steps]
    assert best.step == result.steps
    np.testing.assert_allclose(best.value, result.trace["hypergradient_norm"][-1], rtol=1e-12)
    assert len(seen) == len(result.probes["step"]) + 1  # once more where the run went back to


def test_a_probe_may_return_the_metric_now_and_then(aid):
    values = {4: None, 8: {"other": 1.0, "late": 5.0}, 12: {"other": 1.0}, 16: {"late": 4.0}}
    steps = iter(values)
    best, newest = bl.hooks.Best("late"), []
    bl.run(
        aid, X0, Y0, steps=16, options=bl.RunOptions(every=4, probe=lambda state, info: values[next(steps)]), 
        hooks=[best, lambda event: newest.append(event.newest().get("late"))],
    )  # fmt: skip
    assert (best.step, best.value) == (16, 4.0)
    assert newest == [None, 5.0, None, 4.0]


def test_a_name_that_no_probe_returns_lists_what_there_is(aid):
    go = lambda hook: bl.run(aid, X0, Y0, steps=4, hooks=[hook], options=bl.RunOptions(probe=distance))
    known = r"the trace and the probes have no 'distanz': .*distance, hypergradient_norm"
    with pytest.raises(bl.RunError, match=known):
        go(bl.hooks.Best("distanz"))
    vector = lambda state, info: {"x": state.x}
    with pytest.raises(bl.RunError, match=r"watches one number, but the probe's 'x' is .*: return a float"):
        bl.run(
            aid,
            X0,
            Y0,
            steps=4,
            hooks=[bl.hooks.EarlyStopping("x", patience=1)],
            options=bl.RunOptions(probe=vector),
        )


def inner(x, y, *, state):
    """The model's state counts the steps."""
    return jnp.sum((y - x) ** 2), {}, {"count": state["count"] + 1}


def counts():
    problem = bl.Problem(inner=inner, outer=lambda x, y: jnp.sum((y - 2.0) ** 2))
    return bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1)


def test_probes_and_hooks_see_the_model_s_state():
    by_keyword = lambda state, info, *, model_state: {"a": int(model_state["count"])}
    by_place = lambda state, info, model_state: {"b": int(model_state["count"])}
    seen = []

    def hook(event):
        seen.append(int(event.model_state["count"]))
        jax.tree.map(np.testing.assert_array_equal, (event.x, event.y), (event.state.x, event.state.y))

    hooks = [bl.hooks.Probe(by_place), hook]
    begin = {"count": jnp.int32(0)}
    result = bl.run(
        counts(),
        X0,
        X0,
        model_state=begin,
        steps=9,
        options=bl.RunOptions(every=3, probe=by_keyword),
        hooks=hooks,
    )
    assert [n for n in result.probes["a"] if np.isfinite(n)] == [3, 6, 9]
    assert [n for n in result.probes["b"] if np.isfinite(n)] == [3, 6, 9]
    assert seen == [3, 6, 9]


def test_without_a_model_state_a_probe_gets_none(aid):
    seen = []
    probe = lambda state, info, model_state: seen.append(model_state)
    bl.run(aid, X0, Y0, steps=1, options=bl.RunOptions(probe=probe))
    assert seen == [None]


@pytest.mark.usefixtures("as_users_see_it")
def test_what_is_no_probe_is_refused_before_any_work(aid):
    for probe in (lambda state: {}, lambda state, info, *, model: {}, 3):
        with pytest.raises(
            TypeError, match=r"probe must be a function of \(state, info\), which may have a keyw"
        ):
            bl.run(aid, X0, Y0, steps=1, options=bl.RunOptions(probe=probe))
