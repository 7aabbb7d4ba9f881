"""Penalties per feature against closed forms, optimality conditions, finite differences and scikit-learn's models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.model_selection import KFold

import bilevel as bl
from bilevel.sklearn import folds, penalty_softmax as entropy, penalty_squares as squares
from bilevel.sklearn.logistic import PerFeatureLogisticRegression, PerFeatureSparseLogisticRegression
from bilevel.sklearn.penalty_solver import Spectral
from bilevel.sklearn.ridge import PerFeatureLasso, PerFeatureRidge
from bilevel.sklearn.splits import splits

SHARED = 1e-6  # a spread with which all penalties are the same
NO_PRIOR = (np.float64(0), np.float64(0))


def regression(rows=60, features=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features)) * np.geomspace(0.5, 5, features) + 3
    return X, X @ rng.normal(size=features) + 2 * rng.normal(size=rows)


def classification(rows=60, features=4, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features))
    scores = 3 * X[:, :2] @ rng.normal(size=(2, classes)) + rng.gumbel(size=(rows, classes))
    return X, scores.argmax(1)


@pytest.mark.parametrize(("rows", "features"), [(30, 5), (6, 9)])
def test_ridge_is_the_solution_of_its_normal_equations(rows, features):
    rng = np.random.default_rng(1)
    X, Y, penalties = (
        rng.normal(size=(rows, features)),
        rng.normal(size=(rows, 2)),
        rng.uniform(0.01, 3, features),
    )
    expected = np.linalg.solve(X.T @ X / rows + np.diag(penalties), X.T @ Y / rows)
    np.testing.assert_allclose(squares.ridge(X, Y, penalties), expected, rtol=1e-9)


@pytest.mark.slow
def test_ridge_with_its_own_penalties_on_all_rows():
    X, y = regression()
    fitted = PerFeatureRidge(spread=2.0).fit(X, y)
    Z = X - X.mean(0)
    expected = np.linalg.solve(Z.T @ Z + np.diag(fitted.alpha_), Z.T @ (y - y.mean()))
    np.testing.assert_allclose(fitted.coef_, expected, rtol=1e-8)
    np.testing.assert_allclose(fitted.intercept_, y.mean() - X.mean(0) @ expected, rtol=1e-8)
    assert np.ptp(np.log(fitted.alpha_ / X.var(0))) > 0.1


@pytest.mark.slow
def test_several_outputs_share_the_penalties():
    X, y = regression()
    both = np.stack([y, X[:, 0] - y], axis=1)
    fitted = PerFeatureRidge().fit(X, both)
    for output, w, b in zip(both.T, fitted.coef_, fitted.intercept_, strict=True):
        Z = X - X.mean(0)
        expected = np.linalg.solve(Z.T @ Z + np.diag(fitted.alpha_), Z.T @ (output - output.mean()))
        np.testing.assert_allclose(w, expected, rtol=1e-8)
        np.testing.assert_allclose(b, output.mean() - X.mean(0) @ w, rtol=1e-8)


@pytest.mark.slow
def test_one_penalty_for_all_is_scikit_learns_model():
    X, y = regression()
    X = (X - X.mean(0)) / X.std(0)
    ours = PerFeatureRidge(spread=SHARED).fit(X, y)
    np.testing.assert_allclose(ours.alpha_, ours.alpha_[0], rtol=1e-6)
    np.testing.assert_allclose(ours.coef_, Ridge(ours.alpha_[0]).fit(X, y).coef_, rtol=1e-5)
    ours = PerFeatureLasso(spread=SHARED).fit(X, y)
    np.testing.assert_allclose(ours.coef_, Lasso(ours.alpha_[0], tol=1e-10).fit(X, y).coef_, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_one_penalty_for_all_is_scikit_learns_classifier(classes):
    X, y = classification(classes=classes)
    X = (X - X.mean(0)) / X.std(0)
    ours = PerFeatureLogisticRegression(spread=SHARED).fit(X, y)
    theirs = LogisticRegression(C=1 / ours.alpha_[0], tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_gradient_is_zero_with_its_own_penalties(classes):
    X, y = classification(classes=classes)
    fitted = PerFeatureLogisticRegression(spread=2.0).fit(X, y)
    errors = fitted.predict_proba(X) - np.eye(classes)[y]
    errors = errors[:, 1:] if classes == 2 else errors
    assert np.abs(X.T @ errors + fitted.alpha_[:, None] * fitted.coef_.T).max() < 1e-4
    assert np.abs(errors.sum(0)).max() < 1e-4


def optimal(correlations, coefficients, alpha, tolerance):
    """That −correlations is in alpha times the subdifferential of |coefficients|."""
    zero = coefficients == 0
    alpha = np.broadcast_to(alpha, zero.shape)
    assert (np.abs(correlations[zero]) <= alpha[zero] + tolerance).all()
    apart = correlations + alpha * np.sign(coefficients)
    np.testing.assert_allclose(apart[~zero], 0, atol=tolerance)
    return zero.sum()


def test_lasso_has_exact_zeros_and_is_optimal():
    X, y = regression(features=4)
    X = np.hstack([X, np.random.default_rng(5).normal(size=(len(X), 8))])  # eight columns of noise
    fitted = PerFeatureLasso(spread=1.0).fit(X, y)
    errors = fitted.predict(X) - y
    zeros = optimal(X.T @ errors / len(X), fitted.coef_, fitted.alpha_, 1e-5)
    assert abs(errors.mean()) < 1e-8
    assert 0 < zeros < 12


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_sparse_logistic_has_exact_zeros_and_is_optimal(classes):
    X, y = classification(classes=classes, features=12)  # ten columns of noise
    fitted = PerFeatureSparseLogisticRegression().fit(X, y)
    errors = fitted.predict_proba(X) - np.eye(classes)[y]
    errors = errors[:, 1:] if classes == 2 else errors
    zeros = optimal(X.T @ errors, fitted.coef_.T, fitted.alpha_[:, None], 1e-4)
    assert np.abs(errors.sum(0)).max() < 1e-4
    assert 0 < zeros < fitted.coef_.size


def by_hand(solve, X, Y, parts, x):
    """The K-fold validation loss as anyone would compute it: fold by fold, without padding, in NumPy."""
    total = 0.0
    for rows, out in parts:
        means = X[rows].mean(0), Y[rows].mean(0)
        w = solve(X[rows] - means[0], Y[rows] - means[1], np.exp(x))
        total += 0.5 * np.sum(((X[out] - means[0]) @ w - (Y[out] - means[1])) ** 2)
    return total / sum(len(out) for _, out in parts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ridge", "lasso"])
def test_padded_hypergradient_is_that_of_validation_by_hand(kind):
    """Value and derivative by every penalty's logarithm, against central differences of the loss by hand."""
    parts, x = list(KFold(3).split(np.zeros(40))), np.log([0.05, 0.3, 0.01, 0.1])
    X, y = regression(rows=40)
    X, Y = (X - X.mean(0)) / X.std(0), y[:, None] / y.std()
    data, y0, smoothness = squares.data(X, Y, parts, True)
    data = bl.Batch(data.inner, (*data.outer, NO_PRIOR))
    problem = squares.problem(kind == "lasso", None)
    if kind == "lasso":
        solver = Spectral(problem, 1 / smoothness, folds.bounded_l1, tolerance=1e-9)
    else:
        solver = bl.tuning_free(problem, project=folds.bounded, tol=1e-8)
    step = jax.jit(solver.step)
    state, info = step(solver.init(np.pad(x, (0, 12)), y0, data), data)
    if kind == "ridge":  # whose first step brings y and v to x
        info = step(state, data)[1]
    value = lambda x: by_hand(getattr(squares, kind), X, Y, parts, x)
    np.testing.assert_allclose(info.outer_value, value(x), rtol=1e-6)
    numeric = [(value(x + e) - value(x - e)) / 2e-4 for e in 1e-4 * np.eye(4)]
    np.testing.assert_allclose(info.hypergradient[:4], numeric, rtol=2e-3, atol=1e-6)
    np.testing.assert_array_equal(info.hypergradient[4:], 0)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_padded_logistic_problem_is_that_of_scikit_learn_fold_by_fold(classes):
    """Its own models of the folds are stationary points of the padded g, and f is their mean log-loss held out."""
    X, y = classification(rows=40, classes=classes)
    parts, x, C = list(KFold(3).split(X)), np.log([0.05, 0.3, 0.01, 0.1]), 4
    data, (w, b), _ = entropy.data(X, np.eye(classes)[y], parts, True)
    losses, columns = [], slice(1, 2) if classes == 2 else slice(0, classes)
    for k, (rows, out) in enumerate([*parts, (np.arange(40), np.arange(0))]):
        units = np.exp(-x / 2) / np.sqrt(len(rows))
        model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(X[rows] * units, y[rows])
        k = k if len(out) else -1  # the fold of all rows is the last one
        w[k, :4, columns], b[k, columns] = model.coef_.T * units[:, None], model.intercept_
        if len(out):
            losses.append(-model.predict_log_proba(X[out] * units)[np.arange(len(out)), y[out]])
    assert w.shape == (6, 16, C)
    data = bl.Batch(data.inner, (*data.outer, NO_PRIOR))
    problem, point = entropy.problem(False, None), (jnp.asarray(w), jnp.asarray(b))
    x = jnp.pad(x, (0, 12))
    np.testing.assert_allclose(problem.f(x, point, data), np.concatenate(losses).mean(), rtol=1e-6)
    for part in jax.grad(lambda point: problem.g(x, point, data))(point):
        np.testing.assert_allclose(part, 0, atol=1e-5)


def test_the_curve_begins_with_the_best_single_penalty():
    X, y = regression()
    fitted = PerFeatureRidge(max_iter=3, spread=SHARED, random_state=7).fit(X, y)
    parts = list(KFold(5, shuffle=True, random_state=7).split(X))
    by_sklearn = lambda c: np.mean(
        [
            np.mean((Ridge(c * len(rows) / len(X)).fit(Z[rows], y[rows]).predict(Z[out]) - y[out]) ** 2)
            for rows, out in parts
        ]
    )
    Z = (X - X.mean(0)) / X.std(0)
    best = fitted.alpha_[0] / X[:, 0].var()
    np.testing.assert_allclose(fitted.validation_curve_[0], by_sklearn(best), rtol=1e-4)
    for other in (best / 20, best * 20):
        assert by_sklearn(other) > fitted.validation_curve_[0] * (1 - 1e-6)


def test_the_single_penalty_is_found_where_the_signal_is_weak():
    """Several of the strongest L1 penalties leave nothing, and all have the same value: the search goes on."""
    X, y = regression(rows=60)
    noisy = 0.05 * (y - y.mean()) / y.std() + np.random.default_rng(2).normal(size=60) * 0.3
    X = np.hstack([np.ones((60, 1)), X[:, 1:]]) * 1e-3
    fitted = PerFeatureLasso(spread=SHARED).fit(X, noisy)
    values = [
        np.mean(
            [
                _error(Lasso(a, tol=1e-8), X / np.where(X.std(0) > 0, X.std(0), 1), noisy, *part)
                for part in KFold(5, shuffle=True, random_state=0).split(X)
            ]
        )
        for a in np.geomspace(1e-4, 1, 30) * noisy.std()
    ]
    assert fitted.validation_curve_.min() <= min(values) * 1.01


def _error(model, X, y, rows, out):
    return np.mean((model.fit(X[rows], y[rows]).predict(X[out]) - y[out]) ** 2)


def test_more_penalties_do_not_raise_the_validation_value():
    X, y = regression(features=8)
    fitted = PerFeatureRidge(spread=3.0).fit(X, y)
    assert fitted.validation_curve_[-1] < fitted.validation_curve_[0]


def test_folds_are_no_more_than_rows_or_members_of_the_largest_class():
    X, y = np.zeros((7, 1)), np.array([0, 0, 0, 0, 0, 1, 1])
    assert len(splits(5, X, y, True, 0.2, 0)) == 5  # a rare class does not change what was asked for
    assert len(splits(9, X, y, True, 0.2, 0)) == 5
    assert len(splits(5, X[:3], y[:3], False, 0.2, 0)) == 3
    ((rows, out),) = splits("split", X, y, False, 0.3, 0)
    assert len(out) == 3
    assert set(rows) | set(out) == set(range(7))


@pytest.mark.slow
@pytest.mark.parametrize("loss", [squares, entropy])
@pytest.mark.parametrize("sparse", [False, True])
def test_groups_have_the_penalty_of_their_number(loss, sparse):
    """g with groups at x is g without at x[groups]; the proximal map likewise."""
    X, y = classification(rows=9)
    groups = (1, 0, 1, 2) + (0,) * 12
    data, y0, _ = loss.data(X, np.eye(3)[y], [(np.arange(6), np.arange(6, 9))], True)
    point = jax.tree.map(lambda a: jnp.asarray(np.random.default_rng(0).normal(size=a.shape)), y0)
    x = jnp.linspace(-1, 1, 16)
    grouped, single = loss.problem(sparse, groups), loss.problem(sparse, None)
    if sparse:
        ours, theirs = grouped.prox(x, point, 0.5), single.prox(x[np.array(groups)], point, 0.5)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    ours, theirs = grouped.g(x, point, data), single.g(x[np.array(groups)], point, data)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
