"""Data distillation: the derivative of training by finite differences, k-means by scikit-learn, and a short trial."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.cluster import KMeans

import bilevel as bl
import recorded
from bilevel.applications import distillation as app
from bilevel.data.examples import Examples


@pytest.fixture(autouse=True)
def bundled(monkeypatch, tmp_path):
    monkeypatch.delenv("BILEVEL_DATA", raising=False)
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path))


@pytest.mark.slow
def test_the_derivative_of_training_by_finite_differences():
    """In float64: two steps from each of two random starts, then the loss on real images."""
    rng = np.random.default_rng(0)
    double = lambda tree: jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), tree)
    networks = [double(app.random_weights(jax.random.key(i), 5)) for i in range(2)]
    real, labels = jnp.asarray(rng.random((2, 20, 784))), jnp.asarray(rng.integers(0, 10, (2, 20)))
    x = app.Point(
        jnp.asarray(rng.random((100, 784))), jnp.float64(-1.5), jax.tree.map(jnp.zeros_like, networks[0])
    )

    @jax.jit
    def after_training(images, log_rate):
        values = []
        for w, picture, label in zip(networks, real, labels, strict=True):
            for _ in range(2):
                slope = jax.grad(app.loss)(w, images, jnp.asarray(app.LABELS))
                w = jax.tree.map(lambda a, b: a - jnp.exp(log_rate) * b, w, slope)
            values.append(app.loss(w, picture, label))
        return sum(values) / 2

    stacked = jax.tree.map(lambda *each: jnp.stack(each), *networks)
    batch = bl.Batch(stacked, (stacked, real, labels))
    solver = bl.maml(app.PROBLEM, inner=1.0, outer=1.0, inner_steps=2)
    _, info = jax.jit(solver.step)(solver.init(x, x, batch), batch)
    np.testing.assert_allclose(info.outer_value, after_training(x.images, x.log_rate), rtol=1e-10)
    toward, h = jnp.asarray(rng.normal(size=(100, 784))), 1e-4
    along = after_training(x.images + h * toward, x.log_rate) - after_training(
        x.images - h * toward, x.log_rate
    )
    np.testing.assert_allclose(jnp.vdot(info.hypergradient.images, toward), along / (2 * h), rtol=1e-4)
    faster = after_training(x.images, x.log_rate + h) - after_training(x.images, x.log_rate - h)
    np.testing.assert_allclose(info.hypergradient.log_rate, faster / (2 * h), rtol=1e-4)


@pytest.fixture(scope="module")
def digits():
    rng = np.random.default_rng(0)
    return Examples(rng.random((300, 784)).astype(np.float32), np.repeat(np.arange(10, dtype=np.int32), 30))


def test_ten_of_each_class_are_drawn(digits):
    some = app.drawn(digits, 3)
    np.testing.assert_array_equal(some.targets, app.LABELS)
    assert len(np.unique(some.inputs, axis=0)) == 100
    for image, label in zip(some.inputs, some.targets, strict=True):
        assert any((image == other).all() for other in digits.inputs[digits.targets == label])


def test_centers_are_those_of_scikit_learn(digits):
    found, begun = app.centers(digits, 0, rounds=100), app.drawn(digits, 0)
    for digit in (0, 7):
        own = slice(10 * digit, 10 * digit + 10)
        images = digits.inputs[digits.targets == digit]
        theirs = KMeans(
            10, init=begun.inputs[own], n_init="auto", max_iter=100, tol=0, algorithm="lloyd"
        ).fit(images)
        np.testing.assert_allclose(found.inputs[own], theirs.cluster_centers_, atol=1e-5)


@pytest.mark.slow
def test_a_judge_trains_with_momentum(digits):
    key, some = jax.random.key(5), app.drawn(digits, 0)
    some = Examples(jnp.asarray(some.inputs), jnp.asarray(some.targets))
    _, shares = app.accuracies(key, some, 0.1, some, some, every=3, blocks=2, hidden=8)
    w = app.random_weights(jax.random.split(key)[0], 8)
    speed = jax.tree.map(jnp.zeros_like, w)
    for _ in range(6):
        slope = jax.grad(app.loss)(w, some.inputs, some.targets)
        speed = jax.tree.map(lambda v, b: 0.9 * v + b, speed, slope)
        w = jax.tree.map(lambda a, v: a - 0.1 * v, w, speed)
    right = np.asarray(app.scores(w, some.inputs)).argmax(axis=1) == np.asarray(some.targets)
    np.testing.assert_allclose(shares[-1], np.mean(right), atol=0.011)  # one image may lie on the edge


@pytest.fixture
def short(monkeypatch):
    """Two training steps instead of fifteen, on a few of the images."""
    whole = app.parts(0)
    monkeypatch.setattr(app, "FEW", 2)
    monkeypatch.setattr(app, "RATES", app.RATES[1:2])
    monkeypatch.setattr(app, "parts", lambda seed: tuple(part.take(np.arange(300)) for part in whole))


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_short_trial_and_its_picture():
    with jax.numpy_dtype_promotion("standard"):
        outcome = app.APPLICATION.trial(0, 1, False)
    recorded.check("distillation", outcome.scores)
    assert all(0 < value <= 1 for row in outcome.scores.values() for value in row.values())
    made = outcome.seen["pictures"]["ten synthetic"]
    assert made.shape == (100, 784)
    assert (made != outcome.seen["pictures"]["ten k-means centers"]).any()
    figure = Figure()
    app.APPLICATION.draw(figure, [outcome, outcome])
    assert len(figure.axes) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_the_start_of_y_stays_zero():
    task = app.APPLICATION.task(0)
    with jax.numpy_dtype_promotion("standard"):
        ran = bl.run(app.solver(2), task.x0, task.y0, data=task.data, steps=2)
    assert all((np.asarray(leaf) == 0).all() for leaf in ran.x.moved)
    assert ran.x.log_rate != task.x0.log_rate
