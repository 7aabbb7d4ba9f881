"""The closed-form heads against scikit-learn, hypergradients against finite differences, and a trial in miniature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import bilevel as bl
import recorded
from bilevel.applications import feature_learning as app
from bilevel.data.examples import Examples


@pytest.fixture(autouse=True)
def bundled(monkeypatch, tmp_path):
    monkeypatch.delenv("BILEVEL_DATA", raising=False)
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def small():
    """In double precision, with folds of unequal sizes."""
    rng = np.random.default_rng(0)
    batch = app.Folded(Examples(rng.normal(size=(31, 3)), rng.normal(size=31)), np.eye(3)[np.arange(31) % 3])
    x = app.Features(rng.normal(size=(3, 4)), rng.normal(size=4), np.log(0.3))
    return jax.tree.map(jnp.asarray, (x, batch))


@pytest.mark.slow
def test_heads_are_ridge_regressions_without_their_fold(small):
    linear = pytest.importorskip("sklearn.linear_model")
    x, batch = small
    A, heads = np.asarray(app.phi(x, batch.examples.inputs)), app.heads(x, batch)
    for k in range(3):
        seen = np.asarray(batch.fold[:, k] == 0)
        ridge = linear.Ridge(alpha=0.3 * seen.sum(), fit_intercept=False)
        ridge.fit(A[seen], np.asarray(batch.examples.targets)[seen])
        np.testing.assert_allclose(heads[:, k], ridge.coef_, rtol=1e-8)


@pytest.mark.slow
def test_the_outer_value_is_the_error_on_the_folds_left_out(small):
    x, batch = small
    A, heads = np.asarray(app.phi(x, batch.examples.inputs)), np.asarray(app.heads(x, batch))
    off = [(A[i] @ heads[:, i % 3] - batch.examples.targets[i]) ** 2 / 2 for i in range(31)]
    np.testing.assert_allclose(app.value(x, batch), np.mean(off), rtol=1e-10)


@pytest.mark.slow
def test_aid_finds_the_slope_of_the_closed_form(small):
    """Near y*, with the adjoint solved: its hypergradient against differences of Φ, in every entry of x."""
    x, batch = small
    solver = bl.aid(app.PROBLEM, inner=0.05, adjoint=bl.adjoints.cg(1e-12, max_steps=60), outer=1.0)
    data = bl.Batch(inner=batch, outer=batch)
    _, info = solver.step(solver.init(x, app.heads(x, batch), data), data)
    flat, back = jax.flatten_util.ravel_pytree(x)
    shifted = jax.jit(lambda z: app.value(back(z), batch))
    unit = 1e-5 * jnp.eye(len(flat))
    slopes = [(shifted(flat + e) - shifted(flat - e)) / 2e-5 for e in unit]
    np.testing.assert_allclose(jax.flatten_util.ravel_pytree(info.hypergradient)[0], slopes, atol=1e-7)


@pytest.mark.slow
def test_two_steps_of_everything():
    with jax.numpy_dtype_promotion("standard"):  # optax.adam
        outcome = app.trial(0, 2, False)
    recorded.check("feature-learning", outcome.scores)
    assert all(0 < score < 3 for row in outcome.scores.values() for score in row.values())
    figure = Figure()
    app.draw(figure, [outcome, outcome])
    assert len(figure.axes) == 2
