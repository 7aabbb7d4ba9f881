"""`check` raises if a run or a sweep did not end well."""

import signal

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.sklearn import PerFeatureLasso, PerFeatureRidge

PROBLEM = bl.Problem(inner=lambda x, y: (y - x) ** 2, outer=lambda x, y: (y - 1) ** 2 + x**2)


def stop(event):
    signal.raise_signal(signal.SIGINT)


def run(outer=0.1, hooks=()):
    return bl.run(
        bl.itd(PROBLEM, inner=0.1, outer=outer),
        0.0,
        jnp.zeros(()),
        steps=60,
        options=bl.RunOptions(every=2),
        hooks=hooks,
    )


def sweep(*outer, hooks=()):
    solvers = [bl.itd(PROBLEM, inner=0.1, outer=each) for each in outer]
    return bl.sweep(solvers, 0.0, jnp.zeros(()), steps=60, every=2, hooks=hooks)


def test_a_completed_run_is_returned():
    result = run()
    assert result.check() is result


def test_a_run_that_a_hook_stopped_is_returned():
    result = run(hooks=[lambda event: bl.hooks.Stop("enough")])
    assert result.check() is result


def test_an_interrupted_run_raises_keyboard_interrupt():
    result = run(hooks=[stop])
    with pytest.raises(KeyboardInterrupt, match="interrupted"):
        result.check()


def test_a_run_that_diverged_raises_run_error():
    result = run(outer=1e30)
    with pytest.raises(bl.RunError, match=r"diverged: .* lower the .* step size") as caught:
        result.check()
    assert caught.value.result is result


def test_a_run_that_failed_raises_run_error():
    def broken(event):
        raise ValueError("no such file")

    with pytest.raises(bl.RunError) as caught:
        run(hooks=[broken])
    with pytest.raises(bl.RunError, match=r"failed: .*no such file"):
        caught.value.result.check()


@pytest.mark.slow
def test_a_sweep_fails_only_if_every_lane_did():
    one_good = sweep(0.1, 1e30)
    assert one_good.check() is one_good
    with pytest.raises(bl.RunError, match="diverged"):
        sweep(1e30, 2e30).check()


def test_an_interrupted_sweep_raises_keyboard_interrupt():
    found = sweep(0.1, 1e30, hooks=[stop])
    with pytest.raises(KeyboardInterrupt):
        found.check()


@pytest.mark.slow
@pytest.mark.parametrize("model", [PerFeatureRidge, PerFeatureLasso])
def test_ctrl_c_ends_a_fit(model, monkeypatch):
    """Half-tuned penalties are no fit, and a grid search must end."""
    rng, usual = np.random.default_rng(0), bl.run
    X = rng.normal(size=(40, 4))
    y = X @ [1.0, 2.0, 0.0, 0.0] + rng.normal(size=40)
    with_stop = lambda *start, hooks, **options: usual(*start, hooks=[*hooks, stop], **options)
    monkeypatch.setattr(bl, "run", with_stop)
    fitted = model(spread=3.0)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(X, y)
    assert not hasattr(fitted, "coef_")
