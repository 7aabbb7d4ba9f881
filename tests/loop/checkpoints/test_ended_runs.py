"""A run that has ended: read, compared, and gone on with only if what ended it is other now."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from loop.checkpoints.tiny import START, go, inner
from run_options import with_options


@pytest.mark.slow
def test_hooks_get_back_what_they_remembered_of_a_run_that_has_ended(tmp_path):
    first, second = bl.hooks.Best(), bl.hooks.Best()
    go(tmp_path / "run", 20, hooks=[first], every=5)
    go(tmp_path / "run", 20, hooks=[second, bl.hooks.CSV(tmp_path / "late.csv")], every=5)
    assert (second.step, second.value) == (first.step, first.value)
    assert jax.tree.structure(second.state) == jax.tree.structure(first.state)
    np.testing.assert_array_equal(second.x, first.x)


@pytest.mark.slow
def test_a_diagnosis_is_remembered_and_that_of_a_run_that_had_none_is_of_its_end(tmp_path):
    solver = bl.aid(
        bl.Problem(inner=inner, outer=lambda x, y: jnp.sum(y**2)), inner=0.1, adjoint=0.1, outer=0.1
    )
    run = lambda name, **more: bl.run(
        solver, START, START, steps=40, checkpoint=tmp_path / name, resume="auto", **with_options(more)
    )
    whole, again = (run("whole", diagnose=True).diagnosis for _ in range(2))
    assert again.looks["step"].tolist() == [10, 20, 30, 40]
    assert str(again) == str(whole)
    stop = lambda event: bl.hooks.Stop("enough") if event.step == 20 else None
    run("parts", diagnose=True, hooks=[stop], every=5)
    on = run("parts", diagnose=True).diagnosis
    assert on.looks["step"].tolist() == [10, 20, 30, 40]
    assert np.isnan(on.looks["moved"]).tolist() == [False, False, True, False]  # as x was when saved
    np.testing.assert_allclose(on.looks["stationarity"], whole.looks["stationarity"], rtol=1e-6)
    run("late")
    late = run("late", diagnose=True).diagnosis
    assert late.looks["step"].tolist() == [40]
    assert late.notes == ()


@pytest.mark.slow
def test_what_ended_it_may_be_changed(tmp_path):
    assert go(tmp_path / "tol", 400, tol=1e-1).status.code is bl.Code.CONVERGED
    again = go(tmp_path / "tol", 400, tol=1e-1)
    assert again.status.code is bl.Code.CONVERGED
    further = go(tmp_path / "tol", 400, tol=1e-6)
    assert further.steps > again.steps
    stop = lambda event: bl.hooks.Stop("enough")
    assert go(tmp_path / "hook", 40, hooks=[stop], every=5).steps == 5
    assert go(tmp_path / "hook", 40, hooks=[stop], every=5).steps == 5
    assert go(tmp_path / "hook", 40).status.code is bl.Code.COMPLETED


@pytest.mark.slow
def test_a_run_that_diverged_is_gone_on_with_if_its_steps_may_be_halved(tmp_path):
    solver = bl.aid(
        bl.Problem(inner=inner, outer=lambda x, y: jnp.sum(y**2)), inner=3.0, adjoint=0.1, outer=0.01
    )
    run = lambda **more: bl.run(
        solver,
        START,
        START,
        steps=3000,
        checkpoint=tmp_path,
        resume="auto",
        **with_options(more | dict(every=50)),
    )
    assert run().status.code is run().status.code is bl.Code.DIVERGED
    assert run(on_divergence="halve").steps == 3000


@pytest.mark.slow
def test_an_ended_run_is_compared_too(tmp_path):
    go(tmp_path)
    with pytest.raises(ValueError, match="thin"):
        go(tmp_path, thin=2)
    with pytest.raises(ValueError, match="the record"):
        go(tmp_path, record=lambda state, info: {"y": state.y})


@pytest.mark.slow
def test_while_it_blows_up_a_run_that_would_be_halved_saves_the_place_to_go_back_to(tmp_path):
    """So that going on from disk goes back to where the unbroken run goes back to."""
    solver = bl.aid(
        bl.Problem(
            inner=lambda x, y: 1.5 * jnp.sum(y**2) - jnp.sum(x * y),
            outer=lambda x, y: 0.5 * jnp.sum((y - 1) ** 2) + 0.05 * jnp.sum(x**2),
        ),
        inner=0.8,  # beyond 2/3: it takes hundreds of steps to overflow
        adjoint=0.2,
        outer=0.05,
    )
    ask = dict(steps=2500, every=50, on_divergence="halve")
    unbroken = bl.run(solver, START, START, **with_options(ask))
    assert unbroken.halvings

    def stop(event):
        if event.step == 350:
            raise KeyboardInterrupt

    bl.run(
        solver,
        START,
        START,
        checkpoint=tmp_path,
        **with_options(ask | dict(save_every=50)),
        hooks=[stop],
    )
    saved = bl.load(tmp_path)
    assert saved.steps == 350
    assert saved.recovery.place.step < 350
    again = bl.run(
        solver,
        START,
        START,
        checkpoint=tmp_path,
        **with_options(ask | dict(save_every=50)),
        resume="auto",
    )
    assert again.halvings == unbroken.halvings
    jax.tree.map(np.testing.assert_array_equal, (again.run, again.trace), (unbroken.run, unbroken.trace))
