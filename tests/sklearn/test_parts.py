"""What `cv` may be, and what is told of what it may not."""

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, LeaveOneOut, StratifiedKFold

from bilevel.sklearn import PerFeatureLogisticRegression, PerFeatureRidge
from bilevel.sklearn.splits import splits

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4))
Y = X @ [1.0, 2.0, 0.0, 0.0] + 0.3 * RNG.normal(size=40)
CLASSES = (Y > 0).astype(int)
HALF, REST = np.arange(20), np.arange(20, 40)


def parts(cv, y=Y, classes=False, fraction=0.2):
    return splits(cv, X, y, classes, fraction, 0)


def test_all_forms_are_pairs_of_row_numbers():
    for cv in (4, np.int64(4), LeaveOneOut(), [(HALF, REST), (REST, HALF)], "split", StratifiedKFold(4)):
        y = CLASSES if isinstance(cv, StratifiedKFold) else Y
        for train, held in parts(cv, y, isinstance(cv, StratifiedKFold)):
            assert train.dtype.kind == held.dtype.kind == "i"
            assert not set(train.tolist()) & set(held.tolist())


@pytest.mark.slow
def test_masks_are_the_rows_they_mark():
    mask = np.arange(40) < 20
    by_mask, by_number = PerFeatureRidge(cv=[(mask, ~mask)]), PerFeatureRidge(cv=[(HALF, REST)])
    np.testing.assert_array_equal(by_mask.fit(X, Y).coef_, by_number.fit(X, Y).coef_)
    masked = PerFeatureLogisticRegression(cv=[(mask, ~mask)], max_iter=2).fit(X, CLASSES)
    numbered = PerFeatureLogisticRegression(cv=[(HALF, REST)], max_iter=2).fit(X, CLASSES)
    np.testing.assert_array_equal(masked.coef_, numbered.coef_)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "y"), [(PerFeatureRidge, Y), (PerFeatureLogisticRegression, CLASSES)])
def test_rows_that_are_drawn_twice_count_twice(kind, y):
    """Every training row twice is the same mean, so the same problem."""
    once = kind(cv=[(HALF, REST), (REST, HALF)]).fit(X, y)
    twice = kind(cv=[(np.tile(HALF, 2), REST), (np.tile(REST, 2), HALF)]).fit(X, y)
    np.testing.assert_allclose(twice.alpha_, once.alpha_, rtol=1e-3)


REFUSED = {
    "no folds": ([], "has no folds"),
    "an empty part": ([(HALF, [])], "at least one"),
    "nothing to train on": ([([], HALF)], "at least one"),
    "a row too many": ([(HALF, [99])], "has row 99, but X has 40 rows"),
    "a number in place of a pair": ([5], "pairs of (training rows, rows held out)"),
    "fractions": ([(HALF, [0.5])], "numbers of rows"),
    "the same rows": ([(HALF, HALF)], "trains on 20 of the rows that it holds out"),
    "true": (True, "pass e.g. cv=5"),
    "a word": ("splitt", "pass e.g. cv=5"),
    "one fold": (1, 'cv="split"'),
    "groups of rows": (GroupKFold(3), "cv=list(splitter.split"),
    "no iterable": (3.5, "a number of folds, a splitter"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_may_not_be(name):
    cv, words = REFUSED[name]
    with pytest.raises(ValueError, match="cv") as caught:
        parts(cv)
    assert words in str(caught.value)


@pytest.mark.slow
def test_a_generator_that_is_used_up():
    pairs = ((train, held) for train, held in [(HALF, REST)])
    model = PerFeatureRidge(cv=pairs).fit(X, Y)
    with pytest.raises(ValueError, match="a generator can be used once only"):
        model.fit(X, Y)


@pytest.mark.slow
def test_groups_of_rows_by_their_folds():
    groups = np.arange(40) // 10
    model = PerFeatureRidge(cv=list(GroupKFold(4).split(X, Y, groups))).fit(X, Y)
    assert model.score(X, Y) > 0.9


def test_a_class_that_is_not_trained_on_does_not_count():
    y = np.where(np.arange(40) == 0, 2, CLASSES)  # one row has a class of its own
    with pytest.warns(UserWarning, match="holds out 1 rows of classes that it does not train on"):
        found = parts(5, y, True)
    assert sum(len(held) for _, held in found) == 39
    assert not any(0 in held for _, held in found)
    ordered = np.sort(CLASSES)
    with pytest.raises(ValueError, match="trains on one class only"):
        parts([(np.arange(5), np.arange(30, 40))], ordered, True)


def test_a_split_too_small_for_every_class_is_still_one():
    ((train, held),) = parts("split", CLASSES, True, fraction=0.01)
    assert len(held) == 1
    assert len(train) == 39
    with pytest.raises(ValueError, match=r"validation_fraction=0.999 of 40 rows"):
        parts("split", fraction=0.999)


BAD = {
    "spread": [0, -1, 1e-200, 1e200, 10**400, float("inf"), float("nan"), True, "wide", None],
    "max_iter": [0, -3, 2.5, 10**30, "many"],
    "validation_fraction": [0, 1, "half", float("nan")],
    "fit_intercept": ["no", float("nan"), None, np.ones(2)],
    "verbose": ["x", None],
    "groups": [["a", "b", None, 1], [0.1, np.nan, np.nan, 1], [0, 1], [["a"], ["b"], ["c"], ["d"]]],
}


@pytest.mark.parametrize("name", BAD)
def test_parameters_are_refused_by_name(name):
    for value in BAD[name]:
        with pytest.raises((ValueError, TypeError), match=name):
            PerFeatureRidge(**{name: value}).fit(X, Y)


@pytest.mark.slow
def test_the_curve_says_which_entry_was_taken():
    model = PerFeatureRidge(cv=5, spread=3.0).fit(X, Y)
    assert model.n_iter_ == len(model.validation_curve_)
    again = PerFeatureRidge(cv=5, spread=3.0, max_iter=model.best_index_ + 1).fit(X, Y)
    assert again.validation_curve_[-1] == pytest.approx(model.validation_curve_[model.best_index_], rel=1e-9)
    np.testing.assert_allclose(again.alpha_, model.alpha_, rtol=1e-9)


@pytest.mark.parametrize("size", [1e160, 1e-170])
def test_sizes_whose_squares_are_no_numbers_are_refused(size):
    for model, y in ((PerFeatureRidge(), Y), (PerFeatureLogisticRegression(), CLASSES)):
        with pytest.raises(ValueError, match=r"column 0 of X has numbers of size .*: take another unit"):
            model.fit(X * size, y)
    with pytest.raises(ValueError, match="y has numbers of size"):
        PerFeatureRidge().fit(X, Y * size)


def test_a_large_mean_is_no_reason_to_drop_a_column():
    shifted = PerFeatureRidge().fit(X + 1e9, Y)
    np.testing.assert_allclose(shifted.coef_, PerFeatureRidge().fit(X, Y).coef_, rtol=1e-4)
    assert np.abs(PerFeatureRidge().fit(X + 1e12, Y).coef_[:2]).min() > 0.5
    constant = PerFeatureRidge().fit(np.hstack([X, np.full((40, 1), 0.1)]), Y)
    assert constant.coef_[-1] == 0
