"""The inner losses against their formulas, one-step weights against finite differences, and a trial in miniature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import recorded
from bilevel.applications import reweighting as app
from bilevel.data.examples import Examples
from bilevel.problems.reweighting import initial_mlp


@pytest.fixture(autouse=True)
def bundled(monkeypatch, tmp_path):
    monkeypatch.delenv("BILEVEL_DATA", raising=False)
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def few():
    rng = np.random.default_rng(0)
    examples = lambda n: Examples(rng.normal(size=(n, 4)), rng.integers(0, 10, n).astype(np.int32))
    network = initial_mlp(4, 3, 10, seed=1, dtype=np.float64)
    return jax.tree.map(jnp.asarray, (examples(6), examples(5), network))


def chances(y, inputs):
    y, inputs = jax.tree.map(np.asarray, (y, inputs))
    scores = np.maximum(inputs @ y.W1 + y.b1, 0) @ y.W2 + y.b2
    return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)


def test_pairwise_noise_moves_the_given_share_to_the_next_class():
    labels = np.arange(20_000, dtype=np.int32) % 10
    noisy, wrong = app.next_labels(labels, 0.4, classes=10, seed=0)
    np.testing.assert_array_equal(noisy[wrong], (labels[wrong] + 1) % 10)
    np.testing.assert_array_equal(noisy[~wrong], labels[~wrong])
    assert abs(wrong.mean() - 0.4) < 5 * np.sqrt(0.24 / 20_000)
    with pytest.raises(ValueError, match=r"probability=2\.0 is not between 0 and 1"):
        app.next_labels(labels, 2.0, classes=10, seed=0)


@pytest.mark.slow
def test_losses_are_their_formulas(few):
    noisy, _, y = few
    p, rows = chances(y, noisy.inputs), np.array([5, 0, 3, 1, 2, 4])
    own = -np.log(p[np.arange(6), noisy.targets])
    decay = app.DECAY / 2 * (np.sum(y.W1**2) + np.sum(y.W2**2))
    x = jnp.linspace(-2, 2, 6)
    np.testing.assert_allclose(
        app.weighted(x, y, noisy, rows=rows), np.mean(own / (1 + np.exp(-x[rows]))) + decay
    )
    x = jnp.asarray(np.random.default_rng(2).normal(size=(6, 10)))
    given = np.exp(app.CONFIDENCE * np.eye(10)[noisy.targets] + x[rows])
    given /= given.sum(axis=1, keepdims=True)
    expected = np.mean(-np.sum(given * np.log(p), axis=1)) + decay
    np.testing.assert_allclose(app.corrected(x, y, noisy, rows=rows), expected)


@pytest.mark.slow
def test_the_weighting_network_weighs_gradients_and_is_not_differentiated_itself(few):
    noisy, _, y = few
    x = jax.tree.map(jnp.asarray, initial_mlp(1, 5, 1, seed=3, dtype=np.float64))
    w = np.asarray(app.weight(x, app.losses(y, noisy)))
    frozen = lambda y: jnp.sum(w * app.losses(y, noisy)) / w.sum() + app.decay(y)
    ours = jax.grad(lambda y: app.weighted_by_network(x, y, noisy))(y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), ours, jax.grad(frozen)(y))


@pytest.mark.slow
def test_one_step_weights_are_cut_and_normalized_slopes(few, monkeypatch):
    """One step on a batch of all images: weights from differences of the trusted loss after that step."""
    noisy, trusted, y = few
    monkeypatch.setattr(app, "BATCH", 6)
    found = app.one_step_weights.__wrapped__(y, noisy, trusted, 1, 0)

    def after(eps):
        gradient = jax.grad(lambda y: jnp.sum(eps * app.losses(y, noisy)) + app.decay(y))(y)
        moved = jax.tree.map(lambda a, b: a - app.STEP * b, y, gradient)
        p = chances(moved, trusted.inputs)
        return np.mean(-np.log(p[np.arange(5), trusted.targets]))

    slopes = np.array([(after(e) - after(-e)) / 2e-5 for e in 1e-5 * np.eye(6)])
    expected = np.maximum(-slopes, 0)
    assert 0 < np.sum(expected > 0) < 6
    np.testing.assert_allclose(found, 6 * expected / expected.sum(), atol=1e-4)


@pytest.mark.slow
def test_two_steps_of_everything(monkeypatch):
    for name, smaller in dict(STEPS=2, TRAIN=300, TRUSTED=60, TEST=100, BATCH=30, HIDDEN=16).items():
        monkeypatch.setattr(app, name, smaller)
    with jax.numpy_dtype_promotion("standard"):  # optax.adam
        outcome = app.trial(0, 2, False)
        wrong = app.task(0, *app.NOISES[-1]).measure(
            jnp.full(app.TRAIN, 100.0, jnp.float32)
        )  # all of weight one
    np.testing.assert_allclose(1 - wrong, outcome.scores["unweighted"]["accuracy, 40% pairwise"], rtol=1e-6)
    every = [f"{share:.0%} {kind}" for kind, share in app.NOISES]  # of which the trial has the last
    recorded.check(
        "reweighting",
        {
            method: {measure.replace(every[-1], noise): 0.0 for measure in row for noise in every}
            for method, row in outcome.scores.items()
        },
    )
    assert all(0 <= score <= 1 for row in outcome.scores.values() for score in row.values())
    figure = Figure()
    app.draw(figure, [outcome])
    assert len(figure.axes) == 2
