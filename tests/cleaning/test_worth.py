"""What a ranking is worth: against scikit-learn's area, counted pairs, and rankings of known quality."""

from math import comb, factorial
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from bilevel.cleaning.evaluation import (
    EVENLY,
    FOLDS,
    LOOKALIKE,
    RIGHT,
    Worth,
    predicted,
    roc_area,
    worth,
    wrong_labels,
)


class Ranked(NamedTuple):
    suspicion: np.ndarray
    probabilities: np.ndarray


def test_the_area_is_scikit_learn_s_with_ties():
    rng = np.random.default_rng(0)
    wrong, right = rng.integers(0, 6, size=40) / 5, rng.integers(0, 5, size=70) / 5
    expected = roc_auc_score(np.r_[np.ones(40), np.zeros(70)], np.r_[wrong, right])
    assert roc_area(wrong, np.ones(40), right, np.ones(70)) == pytest.approx(expected, abs=1e-12)
    weights = rng.random(110)
    expected = roc_auc_score(np.r_[np.ones(40), np.zeros(70)], np.r_[wrong, right], sample_weight=weights)
    assert roc_area(wrong, weights[:40], right, weights[40:]) == pytest.approx(expected, abs=1e-12)


def made(wrong, right, **more):
    """A `Worth` of given suspicions."""
    change = np.r_[np.full(len(wrong), EVENLY), np.full(len(right), RIGHT)]
    some = dict.fromkeys(("correct", "disputed"), np.zeros(len(change), bool))
    rest = {
        **some,
        "weight": np.ones(len(change)),
        "data": np.zeros(10),
        "data_disputed": np.zeros(10, bool),
        "alike": np.ones(len(change), bool),
        "classes": 2,
        **more,
    }
    rest.setdefault("row", np.arange(len(rest["data_disputed"])))
    return Worth(change=change, suspicion=np.r_[wrong, right], **rest)


def test_the_interval_covers_the_true_area_about_as_often_as_it_says():
    rng, truth = np.random.default_rng(1), 0.760250  # P(N(1, 1) > N(0, 1)) = Φ(1/√2)
    covered = 0
    for _ in range(400):
        low, high = made(rng.normal(1, 1, size=50), rng.normal(0, 1, size=50)).interval()
        covered += low <= truth <= high
    assert 0.91 <= covered / 400 <= 0.98  # four standard errors around 95 %


@pytest.mark.parametrize("apart", [1.0, 2.5, 4.0])
@pytest.mark.parametrize("count", [5, 20])
def test_few_rows_never_make_an_interval_of_nothing(count, apart):
    """An area of one after ten rows says little. Wider than it need be is right, narrower is not."""
    rng, truth, covered = np.random.default_rng(0), norm.cdf(apart / 2**0.5), 0
    for _ in range(400):
        low, high = made(rng.normal(apart, 1, size=count), rng.normal(0, 1, size=count)).interval()
        covered += low <= truth <= high
        assert high - low > 0.01
    assert covered / 400 >= 0.87


def test_rows_that_are_in_every_fold_count_once():
    rng, n, covered = np.random.default_rng(5), 80, 0
    for _ in range(300):
        truth = rng.random(n) < 0.2
        data = np.tile(np.where(truth, rng.random(n) < 0.9, rng.random(n) < 0.1), FOLDS)
        correct, wrong = rng.random(400) < 0.9, np.arange(400) < 200
        disputed = np.where(wrong, rng.random(400) < 0.9, ~correct)
        row = np.tile(np.arange(n), FOLDS)
        found = made(
            np.zeros(200), np.zeros(200), correct=correct, disputed=disputed, data_disputed=data, row=row
        )
        _, least, most = found.share_wrong()
        covered += least <= 0.2 <= most
    assert covered / 300 >= 0.9


def test_trusted_rows_count_as_their_classes_do_in_the_data():
    """Half of the trusted rows are of a class that one row in twenty of the data has, and is judged worse."""
    rng, estimates = np.random.default_rng(6), []
    for _ in range(100):
        rare = np.arange(800) % 2 == 0
        wrong = np.arange(800) % 4 < 2
        error = np.where(rare, 0.4, 0.05)
        correct = rng.random(800) >= error
        disputed = np.where(wrong, rng.random(800) < 0.95, ~correct)
        of_data = rng.random(4000) < 0.05  # rare
        false = rng.random(4000) < 0.1
        alarm = rng.random(4000) < np.where(false, 0.95, np.where(of_data, 0.4, 0.05))
        order = np.argsort(~wrong, kind="stable")
        found = made(
            np.zeros(400),
            np.zeros(400),
            correct=correct[order],
            disputed=disputed[order],
            weight=np.where(rare, 0.05 / 0.5, 0.95 / 0.5)[order],
            data_disputed=alarm,
        )
        estimates.append(found.share_wrong()[0])
    assert np.mean(estimates) == pytest.approx(0.1, abs=0.01)


def test_the_weight_of_a_row_is_that_of_its_class():
    trusted_labels, labels = (
        np.repeat([0, 1], 20).astype(np.int32),
        np.repeat([0, 1], [90, 10]).astype(np.int32),
    )
    know = lambda a, b, *_: Ranked(np.zeros(len(a)), np.eye(2)[b])
    data = np.zeros((100, 1), np.float32), labels, np.zeros((40, 1), np.float32), trusted_labels
    found = worth(know, *data, np.ones((40, 2)) / 2, seed=0)
    assert sorted(set(found.weight.round(12))) == [0.2, 1.8]
    assert found.weight.sum() == pytest.approx(40)


def test_all_kinds_of_faults_are_made_even_of_ten_rows():
    know = lambda a, b, *_: Ranked(np.zeros(len(a)), np.eye(2)[b])
    data = np.zeros((30, 1), np.float32), np.arange(30, dtype=np.int32) % 2
    trusted = np.zeros((10, 1), np.float32), np.arange(10, dtype=np.int32) % 2
    for seed in range(5):
        found = worth(know, *data, *trusted, np.ones((10, 2)) / 2, seed=seed)
        assert set(found.change.tolist()) == {RIGHT, EVENLY, LOOKALIKE}
        assert found.wrong.sum() == 5


def test_the_share_of_wrong_labels_is_found_from_a_test_that_errs():
    rng, covered, estimates = np.random.default_rng(2), 0, []
    for _ in range(300):
        correct = rng.random(300) < 0.85  # so that f = 0.15
        given_wrong = np.arange(300) < 150
        disputed = np.where(given_wrong, rng.random(300) < 0.9, ~correct)
        wrong_in_data = rng.random(2000) < 0.2
        data = np.where(wrong_in_data, rng.random(2000) < 0.9, rng.random(2000) < 0.15)
        found = made(np.zeros(150), np.zeros(150), correct=correct, disputed=disputed, data_disputed=data)
        share, least, most = found.share_wrong()
        estimates.append(share)
        covered += least <= 0.2 <= most
    assert np.mean(estimates) == pytest.approx(0.2, abs=0.01)
    assert 0.91 <= covered / 300 <= 0.99


def test_a_test_that_tells_nothing_says_nothing():
    coin = np.arange(200) % 2 == 0
    found = made(np.zeros(100), np.zeros(100), correct=coin, disputed=coin, data_disputed=coin)
    assert found.share_wrong() is None


def test_how_many_are_found_by_looking_at_so_many():
    data = np.linspace(0, 1, 101)
    found = made(np.full(20, 0.9), np.full(20, 0.1), data=data)
    assert found.found(0.0) == 0
    assert found.found(11 / 101) == 1  # as many of the data are as suspicious as the wrong ones
    assert found.found(1.0) == 1


def ends(had, missed, future):
    """Quantiles of the beta-binomial distributions, from their probabilities in whole numbers."""
    beta = lambda a, b: factorial(a - 1) * factorial(b - 1) / factorial(a + b - 1)

    def quantile(level, a, b):
        total = 0.0
        for k in range(future + 1):
            total += comb(future, k) * beta(k + a, future - k + b) / beta(a, b)
            if total >= level:
                return k / future
        return 1.0

    low = quantile(0.025, had, missed + 1) if had else 0.0
    return low, quantile(0.975, had + 1, missed) if missed else 1.0


@pytest.mark.parametrize(("had", "missed", "future"), [(30, 0, 83), (27, 3, 40), (1, 4, 6), (0, 12, 20)])
def test_the_interval_for_further_labels_in_closed_form(had, missed, future):
    count = had + missed
    assert predicted(had / count, float(count), future) == pytest.approx(ends(had, missed, future), abs=1e-12)


def test_the_interval_for_many_labels_is_that_of_clopper_and_pearson():
    """After n of n its lower end is 0.025^(1/n), after 0 of n its upper end 1 − 0.025^(1/n)."""
    for count in (5, 30, 200):
        low, high = predicted(1.0, float(count), 10**7)
        assert (low, high) == (pytest.approx(0.025 ** (1 / count), abs=0.005), 1)
        low, high = predicted(0.0, float(count), 10**7)
        assert (low, high) == (0, pytest.approx(1 - 0.025 ** (1 / count), abs=0.005))


@pytest.mark.parametrize("truth", [0.6, 0.95])
def test_the_interval_of_labels_found_covers_them(truth):
    """Ten thousand rows of data below a threshold, which a wrong label exceeds with a known probability."""
    rng, covered, width = np.random.default_rng(7), 0, 0.0
    for _ in range(100):
        wrong = np.where(rng.random(30) < truth, 1.0, -1.0)
        found = made(wrong, np.zeros(30), data=np.r_[np.full(80, 0.5), np.full(920, -0.5)])
        low, high = found.found_interval(0.08, 80)
        covered += low <= rng.binomial(80, truth) / 80 <= high
        width += (high - low) / 100
    assert covered / 100 >= 0.93
    assert width < 0.5


def test_the_interval_of_labels_found_reaches_from_lookalikes_to_labels_drawn_evenly():
    """Of six classes: of 20 lookalikes 5 are found, of 16 others all."""
    alike = np.r_[np.ones(20, bool), np.zeros(16, bool), np.zeros(36, bool)]
    wrong = np.r_[np.ones(5), -np.ones(15), np.ones(16)]
    found = made(wrong, np.zeros(36), data=np.linspace(-0.5, 0.5, 101), alike=alike, classes=6)
    low, high = found.found_interval(0.5, 50)
    assert low == predicted(5 / 20, 20.0, 50)[0]
    weight = np.r_[np.full(20, 1 / 6), np.ones(16)]  # one label in five drawn evenly is a lookalike's
    share, count = np.average(wrong > 0, weights=weight), weight.sum() ** 2 / (weight**2).sum()
    assert high == pytest.approx(predicted(float(share), float(count), 50)[1])
    assert found._replace(classes=2, alike=np.r_[np.ones(36, bool), np.zeros(36, bool)]).found_interval(
        0.5, 50
    ) == predicted(21 / 36, 36.0, 50)


def test_labels_made_wrong_are_wrong_and_half_of_them_all():
    rng = np.random.default_rng(3)
    labels, likeness = rng.integers(0, 4, size=200), rng.random((200, 4))
    given, change = wrong_labels(labels, likeness, rng)
    assert ((given != labels) == (change != RIGHT)).all()
    assert np.bincount(change).tolist() == [100, 50, 50]
    alike = change == LOOKALIKE
    second = [
        np.argsort(row)[-1] if np.argsort(row)[-1] != y else np.argsort(row)[-2]
        for row, y in zip(likeness, labels, strict=True)
    ]
    assert (given[alike] == np.array(second)[alike]).all()


def test_hidden_rows_are_not_among_the_trusted_and_none_is_hidden_twice():
    rng = np.random.default_rng(4)
    count = 53  # not a multiple of the folds
    trusted_inputs = np.arange(count, dtype=np.float32)[:, None]
    trusted_labels = np.arange(count, dtype=np.int32) % 3
    inputs, labels = -1 - rng.random((30, 1)).astype(np.float32), rng.integers(0, 3, size=30).astype(np.int32)
    seen, shapes = [], set()

    def weigh(a, b, trusted_a, trusted_b):
        shapes.add((a.shape, trusted_a.shape))
        hidden = a[a[:, 0] >= 0, 0].astype(int)
        assert not set(hidden) & set(trusted_a[:, 0].astype(int))
        assert len(hidden) + len(trusted_a) == count
        assert (trusted_b == trusted_a[:, 0].astype(int) % 3).all()  # those keep their labels
        assert (a < 0).sum() == 30
        seen.extend(hidden)
        truth = np.where(a[:, 0] >= 0, a[:, 0].astype(int) % 3, b)  # one who knows
        return Ranked((b != truth).astype(float), np.eye(3)[truth])

    likeness = np.full((count, 3), 1 / 3)
    found = worth(weigh, inputs, labels, trusted_inputs, trusted_labels, likeness, seed=0)
    assert found.classes == 3
    assert found.alike[found.change == LOOKALIKE].all()
    assert not found.alike[found.change == RIGHT].any()
    assert len(seen) == len(set(seen)) == FOLDS * (count // FOLDS)
    assert len(shapes) == 1  # one compiled program
    assert found.area() == 1
    assert found.suggested == 1
    assert found.share_wrong()[0] == 0


def test_every_fold_has_its_part_of_every_class():
    trusted_labels = np.repeat(np.arange(2, dtype=np.int32), [50, 10])
    parts = []

    def weigh(a, b, trusted_a, trusted_b):
        parts.append(np.bincount(trusted_b).tolist())
        return Ranked(np.zeros(len(a)), np.ones((len(a), 2)) / 2)

    data = np.zeros((4, 1), np.float32), np.zeros(4, np.int32)
    worth(weigh, *data, np.zeros((60, 1), np.float32), trusted_labels, np.ones((60, 2)), seed=0)
    assert parts == [[40, 8]] * FOLDS
