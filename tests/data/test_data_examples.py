"""Splits, label noise and scales."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import bilevel
from bilevel.data import Examples, corrupt_labels, standardize, unit_range


def numbered(n: int) -> Examples:
    return Examples(np.arange(n)[:, None] * 10.0, np.arange(n), "numbers")


@pytest.mark.slow
@given(st.lists(st.integers(1, 10), min_size=1, max_size=4), st.integers(0, 10), st.integers(0, 2**32))
def test_split_sets_are_disjoint_and_keep_pairs_together(sizes, left_over, seed):
    whole = numbered(sum(sizes) + left_over)
    parts = whole.split(*sizes, seed=seed)
    assert [len(part) for part in parts] == sizes
    drawn = np.concatenate([part.targets for part in parts])
    assert len(set(drawn.tolist())) == sum(sizes)
    for part in parts:
        np.testing.assert_array_equal(part.inputs[:, 0], part.targets * 10.0)
        assert part.source == "numbers"


def test_split_by_integer_seed_repeats_and_by_generator_goes_on():
    whole = numbered(100)
    first, again = whole.split(50, seed=3)[0], whole.split(50, seed=3)[0]
    np.testing.assert_array_equal(first.targets, again.targets)
    rng = np.random.default_rng(3)
    one, two = whole.split(50, seed=rng)[0], whole.split(50, seed=rng)[0]
    np.testing.assert_array_equal(one.targets, first.targets)
    assert not np.array_equal(one.targets, two.targets)


@pytest.mark.slow
def test_split_is_uniform():
    """Each of n examples is in a set of size s with probability s/n: binomial counts, within six deviations."""
    whole, rng, runs = numbered(10), np.random.default_rng(0), 2000
    counts = np.zeros((2, 10))
    for _ in range(runs):
        for i, part in enumerate(whole.split(2, 5, seed=rng)):
            counts[i, part.targets] += 1
    share = np.array([[0.2], [0.5]])
    assert np.all(np.abs(counts - runs * share) < 6 * np.sqrt(runs * share * (1 - share)))


@pytest.mark.parametrize("sizes", [(), (0,), (3, -1)])
def test_split_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match=r"at least one example each|whole number of at least 1"):
        numbered(5).split(*sizes, seed=0)


def test_split_larger_than_the_data():
    with pytest.raises(ValueError, match=r"\(4, 2\) need 6 examples, but there are 5 \(numbers\)"):
        numbered(5).split(4, 2, seed=0)


def test_examples_need_one_target_each():
    with pytest.raises(ValueError, match="3 inputs but 2 targets"):
        Examples(np.zeros((3, 1)), np.zeros(2), "nowhere")


@given(st.lists(st.integers(0, 3), max_size=50), st.floats(0, 1), st.integers(0, 2**32))
def test_corrupted_labels_are_exactly_those_reported(labels, probability, seed):
    labels = np.array(labels, dtype=np.int32)
    noisy, wrong = corrupt_labels(labels, probability, classes=4, seed=seed)
    assert noisy.dtype == labels.dtype
    assert np.all((noisy >= 0) & (noisy < 4))
    np.testing.assert_array_equal(noisy != labels, wrong)


def test_corruption_has_the_stated_distribution():
    """A label becomes each of the nine wrong ones with probability p/9: within six deviations."""
    n, p = 20_000, 0.2
    labels = np.repeat(np.arange(10), n)
    noisy, _ = corrupt_labels(labels, p, classes=10, seed=1)
    counts = np.zeros((10, 10))
    np.add.at(counts, (labels, noisy), 1)
    share = np.full((10, 10), p / 9)
    np.fill_diagonal(share, 1 - p)
    assert np.all(np.abs(counts - n * share) < 6 * np.sqrt(n * share * (1 - share)))


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_certain_corruption(probability):
    _, wrong = corrupt_labels(np.arange(10), probability, classes=10, seed=0)
    assert wrong.all() == wrong.any() == bool(probability)


@pytest.mark.parametrize(
    ("labels", "probability", "classes", "message"),
    [
        ([0, 1], 1.5, 2, r"probability=1\.5"),
        ([0, 1], float("nan"), 2, "probability=nan"),
        ([0, 0], 0.5, 1, "classes=1"),
        ([0, 2], 0.5, 2, r"from 0 to 2, expected 0\.\.1"),
        ([-1, 0], 0.5, 2, "from -1 to 0"),
        ([0.0, 1.0], 0.5, 2, "float64: expected integers"),
    ],
)
def test_bad_corruption(labels, probability, classes, message):
    with pytest.raises(ValueError, match=message):
        corrupt_labels(np.array(labels), probability, classes=classes, seed=0)


def test_standardize_uses_the_moments_of_the_first():
    rng = np.random.default_rng(0)
    train, valid = rng.normal(5.0, 3.0, (40, 3)), rng.normal(size=(7, 3))
    scaled, other = standardize(train, valid)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(scaled.var(axis=0), 1, rtol=1e-14)
    np.testing.assert_allclose(other * train.std(axis=0) + train.mean(axis=0), valid, rtol=1e-13, atol=1e-13)


def test_the_old_spelling_of_standardize_warns():
    with pytest.deprecated_call(match="standardize"):
        assert bilevel.data.standardise is standardize


def test_standardize_only_shifts_a_constant_column():
    column = np.full((7, 1), 0.1, dtype=np.float32)  # its mean rounds, so its computed deviation is not zero
    scaled, other = standardize(column, column + np.float32(2))
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, 0, atol=1e-7)
    np.testing.assert_allclose(other, 2, rtol=1e-6)


def test_unit_range():
    scaled, other = unit_range(np.array([[0.0, 5.0], [4.0, 3.0], [1.0, 4.0]]), np.array([[8.0, 3.0]]))
    np.testing.assert_array_equal(scaled, [[-1, 1], [1, -1], [-0.5, 0]])
    np.testing.assert_array_equal(other, [[3, -1]])
    with pytest.raises(ValueError, match=r"column 1 is constant \(2\.0\)"):
        unit_range(np.array([[0.0, 2.0], [1.0, 2.0]]))


@pytest.mark.parametrize("scale", [standardize, unit_range])
@pytest.mark.parametrize("shape", [(0, 3), (4,)])
def test_scales_need_a_matrix(scale, shape):
    with pytest.raises(ValueError, match="non-empty matrix"):
        scale(np.zeros(shape))
