"""`ReweightedClassifier`: scikit-learn's own checks, and what it adds."""

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import sklearn
from bilevel.sklearn import ReweightedClassifier, reweighted_classifier


@pytest.mark.slow
@parametrize_with_checks([ReweightedClassifier()])
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def tumors():
    """Half the rows of a real table and its first ten columns, three labels in ten turned round; forty are trusted."""
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(X))[:290]
    X, y = X[chosen, :10], np.array(["malignant", "benign"])[y[chosen]]
    wrong = rng.random(250) < 0.3
    other = np.where(y == "benign", "malignant", "benign")
    return X[40:], np.where(wrong, other[40:], y[40:]), X[:40], y[:40], wrong, y[40:]


@pytest.fixture(scope="module")
def fitted(tumors):
    X, y, X_trusted, y_trusted, _, _ = tumors
    return ReweightedClassifier(random_state=0).fit(X, y, X_trusted=X_trusted, y_trusted=y_trusted)


@pytest.mark.slow
def test_wrong_labels_lose_their_weight(tumors, fitted):
    *_, wrong, true = tumors
    assert fitted.sample_weight_.shape == wrong.shape
    assert ((fitted.sample_weight_ >= 0) & (fitted.sample_weight_ <= 1)).all()
    assert roc_auc_score(wrong, -fitted.sample_weight_) > 0.9
    assert fitted.sample_weight_[wrong].mean() < 0.5 * fitted.sample_weight_[~wrong].mean()
    np.testing.assert_array_equal(fitted.suspects_, np.argsort(-fitted.suspicion_, kind="stable"))
    assert wrong[fitted.suspects_[:50]].mean() > 0.9
    assert fitted.score(tumors[0], true) > (tumors[1] == true).mean() + 0.1  # righter than what it was taught


def test_the_order_of_rows_is_that_of_X(tumors):
    X, y, *_ = tumors
    model = ReweightedClassifier(trusted_fraction=0.2, random_state=1).fit(X, y)
    held = np.setdiff1d(np.arange(len(X)), model.suspects_)
    assert len(held) == sum(round(0.2 * (y == c).sum()) for c in model.classes_)  # stratified
    assert (model.sample_weight_[held] == 1).all()
    assert (model.suspicion_[held] == 0).all()
    assert (model.sample_weight_[model.suspects_] < 1).all()


def test_probabilities_decisions_and_predictions_agree(tumors, fitted):
    X = tumors[0]
    p = fitted.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_allclose(np.log(p[:, 1] / p[:, 0]), fitted.decision_function(X), rtol=1e-6)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[(p[:, 1] > 0.5).astype(int)])
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), p)


def test_one_seed_gives_one_result(tumors):
    X, y, *_ = tumors
    first, second, third = (ReweightedClassifier(random_state=s).fit(X, y).suspicion_ for s in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert (first != third).any()


def test_scales_and_offsets_of_columns_do_not_matter(tumors, fitted):
    X, y, X_trusted, y_trusted, *_ = tumors
    scale, offset = 10.0 ** np.linspace(-6, 6, X.shape[1]), 1e3 * X.std(axis=0)
    move = lambda X: (X + offset) * scale
    moved = clone(fitted).fit(move(X), y, X_trusted=move(X_trusted), y_trusted=y_trusted)
    np.testing.assert_allclose(moved.suspicion_, fitted.suspicion_, atol=1e-3)


WRONG_LABELS = {
    "of another kind": lambda right: right.astype("U"),
    "other words": lambda right: np.where(right == right[0], "yes", "no"),
    "in between": lambda right: right + 0.5,
    "one that no row has": lambda right: np.where(np.arange(40) < 5, 7, right),
    "missing": lambda right: np.where(np.arange(40) < 5, np.nan, right),
    "infinite": lambda right: np.where(np.arange(40) < 5, np.inf, right),
    "None": lambda right: np.full(40, None),
    "of one class": lambda right: np.full(40, right[0]),
}


@pytest.mark.parametrize("how", WRONG_LABELS)
def test_trusted_labels_are_those_of_y(how):
    """Labels that y does not have would silently make a model of other classes."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 3)), rng.integers(0, 2, size=100)
    with pytest.raises(ValueError, match=r"y_trusted|all trusted rows"):
        ReweightedClassifier(max_iter=1).fit(
            X[40:], y[40:], X_trusted=X[:40], y_trusted=WRONG_LABELS[how](y[:40])
        )


def test_labels_of_equal_value_are_the_same():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 3)), rng.integers(0, 2, size=100)
    model = ReweightedClassifier(max_iter=1, random_state=0)
    model.fit(X[40:], y[40:], X_trusted=X[:40], y_trusted=y[:40].astype(float))
    assert model.classes_.tolist() == [0, 1]


def test_what_is_wrong_with_trusted_rows_is_told_of_them():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 3)), rng.integers(0, 2, size=100)
    hole = np.where(np.arange(40)[:, None] == 3, np.nan, X[:40])
    with pytest.raises(ValueError, match="X_trusted: "):
        ReweightedClassifier().fit(X[40:], y[40:], X_trusted=hole, y_trusted=y[:40])
    with pytest.raises(ValueError, match="column 0 of X has numbers of size 3e"):
        ReweightedClassifier().fit(X * 1e300, y)


@pytest.mark.slow
def test_in_a_grid_search_over_a_pipeline(tumors):
    X, y, *_ = tumors
    steps = make_pipeline(StandardScaler(), ReweightedClassifier(max_iter=2, random_state=0))
    grid = {"reweightedclassifier__trusted_fraction": [0.1, 0.3]}
    search = GridSearchCV(steps, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.5
    assert len(search.best_estimator_[-1].sample_weight_) == len(X)


def test_a_pipeline_transforms_the_trusted_rows_as_well(tumors, fitted):
    X, y, X_trusted, y_trusted, *_ = tumors
    with sklearn.config_context(enable_metadata_routing=True):
        model = clone(fitted).set_fit_request(X_trusted=True, y_trusted=True)
        steps = Pipeline([("scale", StandardScaler()), ("model", model)], transform_input=["X_trusted"])
        steps.fit(X, y, X_trusted=X_trusted, y_trusted=y_trusted)
    np.testing.assert_allclose(steps[-1].suspicion_, fitted.suspicion_, atol=1e-3)


def test_names_of_columns(tumors):
    pandas = pytest.importorskip("pandas")
    X, y, *_ = tumors
    names = [f"column {i}" for i in range(X.shape[1])]
    table = pandas.DataFrame(X, columns=names)
    model = ReweightedClassifier(max_iter=2).fit(table, y)
    assert list(model.feature_names_in_) == names
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[names[::-1]])


@pytest.mark.slow
def test_a_network_learns_what_is_not_linear():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(290, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    wrong = rng.random(250) < 0.2
    given = np.where(wrong, 1 - y[40:], y[40:])
    model = ReweightedClassifier(hidden=16, random_state=0).fit(
        X[40:], given, X_trusted=X[:40], y_trusted=y[:40]
    )
    assert model.score(X[40:], y[40:]) > 0.85
    assert roc_auc_score(wrong, model.suspicion_) > 0.9
    line = ReweightedClassifier(random_state=0).fit(X[40:], given, X_trusted=X[:40], y_trusted=y[:40])
    assert line.score(X[40:], y[40:]) < 0.7


def test_progress_is_shown_when_asked_for(tumors, monkeypatch):
    asked = []
    found = reweighted_classifier.weigh
    monkeypatch.setattr(
        reweighted_classifier,
        "weigh",
        lambda *_, progress, **others: asked.append(progress) or found(*_, **others),
    )
    for verbose in (0, 1):
        ReweightedClassifier(max_iter=2, verbose=verbose).fit(*tumors[:2])
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(trusted_fraction=0), "trusted_fraction must be between 0 and 1, not 0"),
        (dict(trusted_fraction="half"), "trusted_fraction must be between 0 and 1, not 'half'"),
        (dict(max_iter=0), "max_iter must be a whole number of at least 1, not 0"),
        (dict(hidden=0), "hidden must be a whole number of at least 1, not 0"),
    ],
)
def test_bad_parameters_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ReweightedClassifier(**options).fit([[0.0], [1.0]], [0, 1])


def test_bad_data_are_refused(tumors):
    X, y, X_trusted, y_trusted, *_ = tumors
    model = ReweightedClassifier()
    with pytest.raises(TypeError, match=r"(?i)sparse"):
        model.fit(csr_array(X), y)
    with pytest.raises(ValueError, match="go together"):
        model.fit(X, y, X_trusted=X_trusted)
    with pytest.raises(ValueError, match="9 features"):
        model.fit(X, y, X_trusted=X_trusted[:, 1:], y_trusted=y_trusted)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y, X_trusted=X_trusted, y_trusted=y_trusted[1:])
    with pytest.raises(ValueError, match="no class has two rows"):
        model.fit(X[:2], ["a", "b"])
    with pytest.raises(ValueError, match="only one class, a:"):
        model.fit(X[:2], ["a", "a"])
