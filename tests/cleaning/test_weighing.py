"""The engine: its models against scikit-learn's, its hypergradient against differences, padding against none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import bilevel as bl
from bilevel.row_weights import fit as weighing
from bilevel.row_weights.fit import (
    FOLDS,
    PROBLEM,
    Constants,
    Rows,
    confusions,
    corrected,
    judgment,
    training,
    weigh,
)
from bilevel.row_weights.models import bucket, initial, padded, predictor, scale_of
from run_options import with_options

N, D, CLASSES = 60, 3, 3


@pytest.fixture(scope="module")
def table():
    """Correlated columns on different scales, and noisy labels."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(N, D)) @ rng.normal(size=(D, D)) * [1, 100, 0.01] + [0, 1e4, 0]
    labels = (np.argmax(inputs / [1, 100, 0.01] - [0, 100, 0], axis=1) + (rng.random(N) < 0.2)) % CLASSES
    return inputs, labels, np.arange(N) % FOLDS


def rows_of(table, scale, size, columns, depth):
    inputs, labels, fold = table
    return Rows(
        padded(scale(inputs).astype(np.float32), size, columns),
        padded(np.eye(depth, dtype=np.float32)[labels], size),
        np.zeros((size, depth), np.float32),
        padded(fold.astype(np.int32), size),
        padded(np.full(N, size / N, np.float32), size),
    )


def models_of(table, size, columns, depth, ridge=0.05, rounds=10):
    scale = scale_of(table[0], np.full(N, 1 / N), ridge, turned=True)
    rows = rows_of(table, scale, size, columns, depth)
    x = np.full(size, 30, np.float32)
    ridge = padded(scale.ridge.astype(np.float32), columns)
    constants = Constants(prior=x, pull=np.float32(0.1), ridge=ridge)
    y = initial(D, columns, None, CLASSES, depth, FOLDS, np.random.default_rng(0))
    for _ in range(rounds):
        data = bl.Batch(inner=rows, outer=judges(rows), shared=constants)
        y = weighing._trained(weighing.LOGISTIC, x, y, data)
    return x, y, rows, constants, scale


def judges(rows):
    """As many as `weigh` has below, so that one program serves all tests."""
    return Rows(*(part[: 15 if len(rows.fold) == N else 64] for part in rows))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(N, D, CLASSES), (320, 16, 4)], ids=["as it is", "padded"])
def test_models_are_scikit_learn_s(table, sizes):
    inputs, labels, fold = table
    _, y, _, _, scale = models_of(table, *sizes)
    standard = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    for k in range(FOLDS):
        seen = fold != k
        theirs = LogisticRegression(C=1 / (0.05 * N), tol=1e-8, max_iter=1000).fit(
            standard[seen], labels[seen]
        )
        ours = predictor([(W[k : k + 1], c[k : k + 1]) for W, c in y], scale, D, CLASSES)
        np.testing.assert_allclose(ours(inputs), theirs.predict_proba(standard), atol=2e-5)


@pytest.mark.slow
def test_padding_has_no_gradient(table):
    _, y, rows, constants, _ = models_of(table, 320, 16, 4, rounds=1)
    x, y, rows, constants = jax.tree.map(jnp.asarray, (np.zeros(320, np.float32), y, rows, constants))
    loss = lambda x, y: training(x, y, rows, rows=jnp.arange(320), shared=constants)
    gx, gy = jax.grad(loss, argnums=(0, 1))(x, y)
    ((W, c),) = gy
    assert np.any(gx[:N])
    assert not np.any(gx[N:])
    for padding in (W[:, D:], W[:, :, CLASSES:], c[:, CLASSES:]):
        assert padding.size
        assert not np.any(padding)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [None, 4])
def test_padding_does_not_change_the_result(hidden, monkeypatch, table):
    inputs, labels, _ = table
    parts = inputs[15:], labels[15:], inputs[:15], labels[:15]
    options = dict(hidden=hidden, steps=5, seed=1)
    first = weigh(*parts, CLASSES, **options)
    monkeypatch.setattr(weighing, "bucket", lambda count, least: count)
    second = weigh(*parts, CLASSES, **options)
    for one, other in zip(first[:3], second[:3], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)
    np.testing.assert_allclose(first.predict(inputs), second.predict(inputs), atol=2e-3)


@pytest.mark.slow
def test_the_curvature_is_at_most_one(table):
    x, y, rows, constants, _ = models_of(table, N, D, CLASSES, rounds=1)
    x, rows, constants = jax.tree.map(jnp.asarray, (x, rows, constants))
    flat, back = ravel_pytree(y)
    loss = lambda flat: training(x, back(flat), rows, rows=jnp.arange(N), shared=constants)
    hessian = jax.jit(jax.hessian(loss))
    for at in (jnp.zeros_like(flat), flat):
        assert 0 < np.linalg.eigvalsh(hessian(at))[-1] <= 1 + 1e-5


@pytest.mark.slow
def test_hypergradients_against_differences(table):
    """Φ(x) by models trained to the end; along a random direction, at weights of about one half."""
    _, y, rows, constants, _ = models_of(table, N, D, CLASSES, rounds=1)
    rng = np.random.default_rng(2)
    instead = np.roll(rows.label, 1, axis=1)
    constants = constants._replace(prior=rng.normal(size=N).astype(np.float32))
    x = rng.normal(size=N).astype(np.float32)
    data = bl.Batch(inner=rows._replace(instead=instead), outer=judges(rows), shared=constants)
    direction = rng.normal(size=N).astype(np.float32)

    def settled(x):
        trained = y
        for _ in range(10):
            trained = weighing._trained(weighing.LOGISTIC, x, trained, data)
        return trained

    def value(t):
        moved = jnp.asarray(x + np.float32(t) * direction)
        outer, shared = jax.tree.map(jnp.asarray, (data.outer, data.shared))
        return float(judgment(moved, settled(moved), outer, shared=shared))

    solver = bl.aid(PROBLEM, inner=weighing.LOGISTIC.inner, adjoint=bl.adjoints.cg(50), outer=1e-6)
    keep = lambda state, info: {"h": info.hypergradient}
    hypergradient = bl.run(solver, x, settled(x), data=data, steps=1, record=keep).trace["h"][0]
    difference = (value(0.1) - value(-0.1)) / 0.2
    assert float(hypergradient @ direction) == pytest.approx(difference, rel=2e-2)
    assert abs(difference) > 1e-3


def test_corrected_labels_by_bayes_rule():
    p, table = np.array([[0.5, 0.3, 0.2]]), np.array([[0.6, 0.4, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(corrected(p, np.array([1]), table), [[0.20 / 0.47, 0.27 / 0.47, 0]])


def test_confusions_of_many_rows_are_their_shares():
    rng = np.random.default_rng(0)
    share = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]])
    true = rng.integers(3, size=200_000)
    labels = np.array([rng.choice(3, size=len(true), p=row) for row in share])[true, np.arange(len(true))]
    np.testing.assert_allclose(confusions(np.eye(3)[true], labels), share, atol=5e-3)
    np.testing.assert_allclose(confusions(np.eye(3)[true], true), np.eye(3), atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1000, 1707, 5000, 100_001])
def test_buckets_are_close(count):
    size = bucket(count, 256)
    assert count <= size <= max(256, 2 * count)
    assert bucket(size, 256) == size
    assert size <= 1.125 * count or size <= 4096


def test_buckets_are_few():
    assert len({bucket(count, 256) for count in range(1, 20_001)}) <= 40


@pytest.mark.slow
def test_minibatches_rank_as_full_batches_do(monkeypatch):
    """Digits, of which a third have the next digit's label."""
    inputs, labels = load_digits(return_X_y=True)
    inputs, labels = inputs[:700], labels[:700]
    wrong = np.random.default_rng(0).random(600) < 1 / 3
    given = np.where(wrong, (labels[100:] + 1) % 10, labels[100:])
    monkeypatch.setattr(weighing, "LARGEST", 256)
    found = weigh(inputs[100:], given, inputs[:100], labels[:100], 10)
    assert roc_auc_score(wrong, found.suspicion) > 0.95
    assert roc_auc_score(wrong, -found.weights) > 0.95
    assert (found.probabilities.argmax(axis=1) == labels[100:]).mean() > 0.85
    assert len(found.trace["outer_value"]) == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(labels=np.array([0, 3] * 30)), "labels run from 0 to 3"),
        (dict(labels=np.zeros(59, int)), "inputs has 60 rows, but there are 59 labels"),
        (dict(inputs=np.full((60, 3), np.nan)), "inputs must be a non-empty matrix"),
        (dict(trusted_inputs=np.zeros((2, 4))), "inputs have 3 columns, trusted_inputs 4"),
        (dict(classes=1), "classes must be a whole number of at least 2"),
        (dict(steps=0), "steps must be a whole number of at least 1"),
        (dict(hidden=0), "hidden must be a whole number of at least 1"),
        (dict(seed=-1), "seed must be a whole number of at least 0"),
    ],
)
@pytest.mark.usefixtures("as_users_see_it")
def test_bad_input_is_named(table, change, message):
    given = dict(inputs=table[0], labels=table[1], trusted_inputs=table[0][:2], trusted_labels=table[1][:2])
    with pytest.raises(ValueError, match=message):
        weigh(**(given | dict(classes=3) | change))


@pytest.mark.slow
def test_an_interrupt_ends_it(monkeypatch):
    """`run` itself ends a run well that was interrupted; half-learned weights are not what was asked for."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(40, 3)), np.arange(40) % 2

    def interrupted(*given, **options):
        def stop(event):
            raise KeyboardInterrupt

        return bl.run(*given, **with_options(options), hooks=[stop])

    monkeypatch.setattr(weighing, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        weigh(inputs, labels, inputs[:10], labels[:10], 2, steps=2)
