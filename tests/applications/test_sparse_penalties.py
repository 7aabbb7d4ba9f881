"""The fitted model against scikit-learn's, the hypergradient against refitting, documents against their promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import bilevel as bl
import recorded
from bilevel.applications import sparse_penalties as app

SIZES = (120, 80, 50)


@pytest.fixture(scope="module")
def few():
    return app.documents(3, SIZES)


def dense(docs):
    a = np.zeros((len(docs.labels), app.WORDS))
    np.add.at(a, (np.arange(len(a))[:, None], docs.words), docs.weights)
    return a


def test_documents_are_of_length_one_and_separable_by_the_telling_words(few):
    (train, valid, test), telling = few
    assert [len(part.labels) for part in (train, valid, test)] == list(SIZES)
    a = np.concatenate([dense(part) for part in (train, valid, test)])
    labels = np.concatenate([part.labels for part in (train, valid, test)])
    np.testing.assert_allclose(np.linalg.norm(a, axis=1), 1, rtol=1e-5)
    assert abs(labels.sum()) <= 1
    told = np.linalg.lstsq(np.column_stack([a[:, telling], np.ones(len(a))]), labels)[0]
    agree = np.mean(np.sign(a[:, telling] @ told[:-1] + told[-1]) == labels)
    others = np.setdiff1d(np.arange(300), telling)[: app.TELLING]
    astray = np.linalg.lstsq(np.column_stack([a[:, others], np.ones(len(a))]), labels)[0]
    assert agree > 0.9 > np.mean(np.sign(a[:, others] @ astray[:-1] + astray[-1]) == labels)


@pytest.mark.slow
def test_smoothness_is_the_largest_curvature(few):
    train = few[0][0]
    exact = np.linalg.norm(dense(train), 2) ** 2 / (4 * len(train.labels))
    assert exact <= app.smoothness(train) <= 1.06 * exact


@pytest.mark.slow
def test_one_penalty_is_scikit_learns(few, monkeypatch):
    linear = pytest.importorskip("sklearn.linear_model")
    train = few[0][0]
    train = train._replace(weights=train.weights.astype(float), labels=train.labels.astype(float))
    monkeypatch.setattr(app, "SOLVED", 1e-9)
    penalty, n = 3e-3, len(train.labels)
    fit = jax.jit(app.fitted.__wrapped__)
    y = fit(jnp.full(app.WORDS, np.log(penalty)), jnp.zeros(app.WORDS), train, 1 / app.smoothness(train))
    peer = linear.LogisticRegression(
        C=1 / (n * penalty), l1_ratio=1.0, solver="liblinear", fit_intercept=False, tol=1e-9, max_iter=10_000
    )
    peer.fit(dense(train), train.labels)
    assert 0 < np.sum(np.asarray(y) != 0) < n
    np.testing.assert_allclose(y, peer.coef_[0], atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("log_penalty", [-8.0, -10.5])
def test_models_are_fitted_to_the_end(log_penalty):
    """In the single precision of the example: no penalized model is better by much than what it finds."""
    linear = pytest.importorskip("sklearn.linear_model")
    (train, *_), _ = app.documents(0, (600, 1, 1))
    n, penalty = len(train.labels), np.exp(log_penalty)
    x, y0 = jnp.full(app.WORDS, log_penalty, jnp.float32), jnp.zeros(app.WORDS, jnp.float32)
    y = np.asarray(app.fitted(x, y0, train, 1 / app.smoothness(train)), float)
    a = dense(train)
    objective = lambda y: np.mean(np.logaddexp(0, -train.labels * (a @ y))) + penalty * np.abs(y).sum()
    peer = linear.LogisticRegression(
        C=1 / (n * penalty), l1_ratio=1.0, solver="liblinear", fit_intercept=False, tol=1e-8, max_iter=10_000
    )
    best = peer.fit(a, train.labels).coef_[0]
    assert objective(y) == pytest.approx(objective(best), rel=2e-3)
    assert abs(np.sum(y != 0) - np.sum(best != 0)) <= 0.05 * np.sum(best != 0)


@pytest.mark.slow
def test_hypergradient_is_the_slope_of_refitting(monkeypatch):
    """In double precision, on a model small enough to be fitted exactly."""
    rng = np.random.default_rng(0)
    words = np.tile(np.arange(6, dtype=np.int32), (40, 1))
    a, b = rng.normal(size=(2, 40, 6))
    sign = lambda a: np.sign(a[:, 0] - 0.5 * a[:, 1] + rng.normal(size=40))
    train, valid = app.Documents(words, a, sign(a)), app.Documents(words, b, sign(b))
    x, step = rng.normal(size=6) - 3.5, 0.5
    monkeypatch.setattr(app, "SOLVED", 1e-13)
    fit = jax.jit(app.fitted.__wrapped__)
    phi = lambda x: app.validation(x, fit(x, jnp.zeros(6), train, step), valid)[0]
    y, data = fit(x, jnp.zeros(6), train, step), bl.Batch(inner=train, outer=valid)
    solver = bl.aid(app.PROBLEM, inner=step, adjoint=bl.adjoints.cg(1e-12, max_steps=50), outer=1.0)
    _, info = solver.step(solver.init(x, y, data), data)
    slopes = [(phi(x + e) - phi(x - e)) / 2e-5 for e in 1e-5 * np.eye(6)]
    np.testing.assert_allclose(info.hypergradient, slopes, atol=1e-6)


@pytest.mark.slow
def test_two_steps_of_everything(monkeypatch):
    monkeypatch.setattr(app, "MOST", 20)
    with jax.numpy_dtype_promotion("standard"):  # optax.adam
        outcome = app.trial(0, 2, False)
    recorded.check("sparse-penalties", outcome.scores)
    assert all(np.isfinite(score) for row in outcome.scores.values() for score in row.values())
    figure = Figure()
    app.draw(figure, [outcome])
    assert len(figure.axes) == 2
