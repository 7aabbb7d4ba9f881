"""Code that does not look at how a run ended is told by an exception."""

import signal

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.loop.whole import whole
from bilevel.sklearn import PerFeatureLasso, PerFeatureRidge

PROBLEM = bl.Problem(inner=lambda x, y: (y - x) ** 2, outer=lambda x, y: (y - 1) ** 2 + x**2)


def stop(event):
    signal.raise_signal(signal.SIGINT)


def run(outer=0.1, hooks=()):
    return bl.run(bl.itd(PROBLEM, 0.1, outer), 0.0, jnp.zeros(()), steps=60, every=2, hooks=hooks)


def test_a_whole_run_is_handed_through():
    result = run()
    assert whole(result) is result


def test_an_interrupted_one_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        whole(run(hooks=[stop]))


def test_one_that_diverged_is_an_error():
    with pytest.raises(FloatingPointError, match=r"diverged: .* lower the .* step size"):
        whole(run(outer=1e30))


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
