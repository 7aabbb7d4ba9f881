"""Few-shot sinusoids: the waves are waves, adaptation is gradient descent, and a short trial gives all rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import bilevel as bl
import recorded
from bilevel.applications import few_shot_sinusoids as app


@pytest.mark.slow
def test_points_of_both_levels_lie_on_one_wave():
    batch = app.waves(jax.random.key(3), 30)
    t, u = (np.concatenate(pair, axis=1).astype(float) for pair in zip(batch.inner, batch.outer, strict=True))
    assert np.abs(t).max() <= 5
    amplitudes, phases = [], []
    for points, values in zip(t, u, strict=True):  # A sin(t − φ) = A cos φ · sin t − A sin φ · cos t
        basis = np.stack([np.sin(points), np.cos(points)], axis=1)
        (a, b), residual, *_ = np.linalg.lstsq(basis, values)
        assert residual < 1e-8
        amplitudes.append(np.hypot(a, b))
        phases.append(np.arctan2(-b, a))
    assert 0.1 <= min(amplitudes) < 1 < 4 < max(amplitudes) <= 5
    assert 0 <= min(phases) < 0.6 < 2.5 < max(phases) <= np.pi


def test_the_stream_has_new_waves_at_every_step_and_the_same_ones_again():
    stream = app.Waves(jax.random.key(0), tasks=3)
    cursor, first = stream.next(stream.start(0))
    _, second = stream.next(cursor)
    _, again = stream.next(stream.start(1))
    assert not np.intersect1d(first.inner[0], second.inner[0]).size
    jax.tree.map(np.testing.assert_array_equal, second, again)


@pytest.mark.slow
def test_adaptation_is_that_of_the_solvers():
    x, new = app.initial(np.random.default_rng(1)), app.waves(jax.random.key(1), 4)
    loss = jax.vmap(lambda y, query: app.PROBLEM.f(x, y, bl.Batch(None, query)))
    plain = bl.solvers.fomaml(app.PROBLEM, inner=0.05, outer=1.0, inner_steps=3)
    tied = bl.imaml(app.PROBLEM, inner=0.05, outer=1.0, proximal_weight=2.0, inner_steps=3)
    for solver, tie in ((plain, 0.0), (tied, 2.0)):
        errors, _ = app.adapted(x, new, 0.05, tie, 3)
        assert errors.shape == (4, 4)
        np.testing.assert_allclose(errors[:, -1], loss(solver.adapt(x, new), new.outer), rtol=1e-4)


@pytest.mark.slow
def test_pretraining_follows_the_gradient_of_the_mean_loss():
    x, batch = app.initial(np.random.default_rng(2)), app.waves(jax.random.key(2), 3)
    solver = bl.solvers.reptile(app.PROBLEM, inner=1.0, outer=1.0, inner_steps=1)
    after, _ = solver.step(solver.init(x, x, batch), batch)
    t, u = (part.ravel() for part in batch.inner)  # tasks of one size: their mean is that of all points
    gradient = jax.grad(lambda y: jnp.mean((app.network(y, t) - u) ** 2))(jax.tree.map(jnp.asarray, x))
    for name in x:
        np.testing.assert_allclose(after.x[name] - x[name], -gradient[name], atol=1e-5)


@pytest.mark.slow
def test_a_short_trial_and_its_picture(monkeypatch):
    many = app.waves
    monkeypatch.setattr(app, "waves", lambda key, tasks, *shots: many(key, min(tasks, 20), *shots))
    monkeypatch.setattr(app, "HIDDEN", 8)
    with jax.numpy_dtype_promotion("standard"):
        outcome = app.APPLICATION.trial(0, 2, False)
    recorded.check("few-shot-sinusoids", outcome.scores)
    assert all(np.isfinite(value) and value > 0 for row in outcome.scores.values() for value in row.values())
    figure = Figure()
    app.APPLICATION.draw(figure, [outcome, outcome])
    assert len(figure.axes) == 2


@pytest.mark.slow
def test_the_task_can_be_run():
    task = app.APPLICATION.task(1)
    solver = bl.solvers.reptile(task.problem, inner=0.02, outer=0.5, inner_steps=1)
    ran = bl.run(solver, task.x0, task.y0, data=task.data, steps=1)
    assert task.measure is not None
    assert np.isfinite(task.measure(ran.x))
