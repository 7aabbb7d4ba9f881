"""Estimators with a penalty per feature: scikit-learn's own checks, how they behave among its tools, and refusals."""

import jax
import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from bilevel.sklearn.logistic import PerFeatureLogisticRegression, PerFeatureSparseLogisticRegression
from bilevel.sklearn.ridge import PerFeatureLasso, PerFeatureRidge

REGRESSORS = [PerFeatureRidge, PerFeatureLasso]
CLASSIFIERS = [PerFeatureLogisticRegression, PerFeatureSparseLogisticRegression]
ALL = REGRESSORS + CLASSIFIERS


def sample(estimator, rows=60):
    if estimator in CLASSIFIERS:
        X, y = load_iris(return_X_y=True)
        return X[::2][:rows], np.array(["setosa", "versicolor", "virginica"])[y[::2]][:rows]
    X, y = load_diabetes(return_X_y=True)
    return X[:rows], y[:rows]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ALL)
@pytest.mark.filterwarnings("default")
def test_scikit_learns_own_checks(estimator):
    check_estimator(estimator(max_iter=3), on_skip=None)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ALL)
def test_works_among_scikit_learns_tools(estimator):
    X, y = sample(estimator)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), estimator(max_iter=3)),
        {f"{estimator.__name__.lower()}__spread": [0.1, 1.0]},
        cv=2,
    ).fit(X, y)
    best = search.best_estimator_[-1]
    assert best.alpha_.shape == (X.shape[1],)
    assert best.n_iter_ == len(best.validation_curve_)
    copy = clone(best)
    assert not hasattr(copy, "alpha_")
    assert copy.spread == best.spread


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, fun_name="", **__: COMPILED.append(fun_name) if "backend_compile" in event else None
)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ALL)
def test_a_second_fit_compiles_nothing(estimator):
    X, y = sample(estimator)
    estimator(max_iter=3).fit(X, y)
    COMPILED.clear()
    estimator(max_iter=4, spread=0.4).fit(X[:-1], y[:-1])
    assert COMPILED == []


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ALL)
def test_units_of_features_do_not_matter(estimator):
    X, y = sample(estimator)
    units = np.geomspace(1e-3, 1e4, X.shape[1])
    ours, theirs = estimator().fit(X, y), estimator().fit(X * units, y)
    power = 1 if estimator in (PerFeatureLasso, PerFeatureSparseLogisticRegression) else 2
    np.testing.assert_allclose(theirs.alpha_, ours.alpha_ * units**power, rtol=1e-4)
    of = "predict_proba" if estimator in CLASSIFIERS else "predict"
    np.testing.assert_allclose(getattr(theirs, of)(X * units), getattr(ours, of)(X), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", REGRESSORS)
def test_groups_share_a_penalty(estimator):
    X, y = sample(estimator)
    groups = np.array(["a", "b"] * X.shape[1])[: X.shape[1]]
    fitted = estimator(groups=groups, max_iter=4, spread=2.0).fit(X, y)
    power = 1 if estimator in (PerFeatureLasso, PerFeatureSparseLogisticRegression) else 2
    ratios = fitted.alpha_ / X.std(0) ** power
    for group in "ab":
        np.testing.assert_allclose(ratios[groups == group], ratios[groups == group][0], rtol=1e-10)
    assert abs(np.log(ratios[0] / ratios[1])) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ALL)
def test_folds_may_be_given_in_any_way(estimator):
    X, y = sample(estimator)
    cv = KFold(5, shuffle=True, random_state=3)
    ours, theirs = estimator(cv=cv).fit(X, y), estimator(cv=list(cv.split(X))).fit(X, y)
    np.testing.assert_array_equal(ours.alpha_, theirs.alpha_)


@pytest.mark.parametrize("estimator", [PerFeatureRidge, PerFeatureLogisticRegression])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(cv="loo"), "cv=5"),
        (dict(cv=1), "at least 2"),
        (dict(spread=0), "spread=0.5"),
        (dict(max_iter=0), "max_iter"),
        (dict(validation_fraction=1.5), "between 0 and 1"),
        (dict(groups=[0, 1]), "one group for each feature"),
    ],
)
def test_refusals_name_the_value_and_the_fix(estimator, arguments, words):
    with pytest.raises(ValueError, match=words):
        estimator(**arguments).fit(*sample(estimator))


@pytest.mark.parametrize("estimator", ALL)
def test_sparse_matrices_are_refused_in_scikit_learns_words(estimator):
    X, y = sample(estimator)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        estimator().fit(csr_matrix(X), y)


@pytest.mark.parametrize("estimator", CLASSIFIERS)
def test_one_class_is_refused(estimator):
    with pytest.raises(ValueError, match="one class only"):
        estimator().fit(np.eye(4), np.zeros(4))
