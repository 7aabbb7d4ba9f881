"""What becomes of each kind of column, against scikit-learn and NumPy's own dates."""

import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_selection import f_classif
from sklearn.preprocessing import OneHotEncoder

from bilevel.cleaning import cells
from bilevel.cleaning.encoding import LARGEST, LEVELS, fit_encoding, telling
from bilevel.cleaning.table import Table, TableError

RNG = np.random.default_rng(0)


def table(**columns) -> Table:
    columns = {name: list(map(str, values)) for name, values in columns.items()}
    rows = list(map(list, zip(*columns.values(), strict=True)))
    return Table(Path("data.csv"), tuple(columns), rows, [2 + i for i in range(len(rows))], ",")


def labels(count):
    return ["ab"[i % 2] for i in range(count)]


def encoded(values, **options):
    """One column beside a label: its description, and its part of the matrix."""
    given = table(x=values, other=RNG.normal(size=len(values)), y=labels(len(values)))
    encoding, matrix = fit_encoding(given, "y", **options)
    column = encoding.columns[0]
    assert matrix.dtype == np.float32
    np.testing.assert_array_equal(matrix, encoding(given))  # what is fitted is what is applied
    return column, matrix[:, : len(column.parts)]


def test_numbers_are_centred_at_the_median_and_outliers_do_not_widen_the_scale():
    values = RNG.normal(50, 3, size=500).round(4)
    values[:2] = 1e9, -1e9
    column, matrix = encoded(values)
    assert (column.kind, matrix.shape) == ("number", (500, 1))
    low, high = np.percentile(values, 1), np.percentile(values, 99)
    expected = (values - np.median(values)) / np.clip(values, low, high).std()
    np.testing.assert_allclose(matrix[2:, 0], expected[2:], rtol=1e-5, atol=1e-6)
    assert matrix[:2, 0].tolist() == [LARGEST, -LARGEST]
    assert np.abs(matrix[2:]).max() < LARGEST


def test_a_column_mostly_zero_still_varies():
    values = np.zeros(1000)
    values[:3] = 1  # fewer than one in a hundred
    _, matrix = encoded(values)
    assert np.isfinite(matrix).all()
    assert (matrix[:3] > matrix[3:].max()).all()


def test_missing_numbers_take_the_median_and_are_marked():
    values = ["1", "", "3", "NA", " nan ", "5", "?", "2.5"]
    column, matrix = encoded(values)
    assert matrix[:, 1].tolist() == [0, 1, 0, 1, 1, 0, 1, 0]
    assert (matrix[[1, 3, 4, 6], 0] == 0).all()
    assert "missing in 4 rows" in column.treatment


def test_a_few_words_among_numbers_count_as_missing_and_are_told():
    values = [*map(str, RNG.normal(size=99)), "unknown"]
    column, matrix = encoded(values)
    assert column.kind == "number"
    assert "no number in 1 row ('unknown')" in column.treatment
    assert matrix[:, 1].tolist() == [0] * 99 + [1]
    assert encoded([*map(str, RNG.integers(3, size=50)), *["unknown"] * 50])[0].kind == "category"


def test_infinities_are_large_numbers():
    _, matrix = encoded([*RNG.normal(size=50), "inf", "-inf"])
    assert matrix[-2:, 0].tolist() == [LARGEST, -LARGEST]


@pytest.mark.parametrize(
    "values", [["1e308", "-1e308"], ["inf", "-inf"], ["1e-320", "2e-320"], ["inf", ""], ["1", ""]]
)
def test_the_ends_of_what_a_number_can_be(values):
    _, matrix = encoded([values[i // 3 % 2] for i in range(60)])
    assert np.isfinite(matrix).all()
    assert np.abs(matrix).max() <= LARGEST


def test_decimal_commas():
    column, matrix = encoded([f"1.{i:03d},5" for i in range(100)])
    _, expected = encoded([1000.5 + i for i in range(100)])
    assert column.kind == "number"
    np.testing.assert_allclose(matrix, expected, rtol=1e-6)


def test_categories_become_indicators():
    values = RNG.choice(["red", "green", "blue", "grey"], size=200, p=[0.4, 0.3, 0.2, 0.1])
    column, matrix = encoded(values)
    expected = OneHotEncoder(sparse_output=False).fit_transform(values[:, None])
    assert column.kind == "category"
    assert sorted(map(tuple, matrix.T)) == sorted(map(tuple, expected.T))


def test_rare_values_share_a_column_and_there_is_a_limit():
    values = [*["often"] * 60, *["sometimes"] * 30, *[f"once {i}" for i in range(10)]]
    column, matrix = encoded(values)
    assert matrix.sum(axis=0).tolist() == [60, 30, 10]
    assert "12 values, the 2 most frequent by themselves" in column.treatment
    many, matrix = encoded([f"level {i % 100}" for i in range(1000)])
    assert len(many.parts) == LEVELS + 1
    assert (matrix.sum(axis=1) == 1).all()


def test_many_categories_get_fewer_columns_each():
    wide = {f"x{i}": [f"level {j % 40}" for j in RNG.permutation(400)] for i in range(40)}
    encoding, _ = fit_encoding(table(**wide, y=labels(400)), "y")
    assert len(encoding.columns[0].parts) < LEVELS
    assert encoding.width <= 40 * 9


def test_missing_is_a_category_of_its_own_and_an_unseen_value_is_none():
    given = table(x=["a", "b", "", "NA"] * 25, y=labels(100))
    encoding, matrix = fit_encoding(given, "y")
    assert matrix.sum(axis=0).tolist() == [25, 25, 50]
    trusted = encoding(table(x=["b", "never seen", "null"], y=["a", "b", "a"]))
    assert trusted.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_trusted_rows_are_encoded_by_what_the_data_are():
    values = RNG.normal(10, 2, size=300)
    encoding, matrix = fit_encoding(table(x=values, y=labels(300)), "y")
    trusted = encoding(table(y=["a", "b"], x=[values[7], ""]))  # columns in another order
    np.testing.assert_array_equal(trusted, [matrix[7], [0.0]])


def test_dates_are_numbers_and_places_in_cycles():
    days = np.datetime64("2023-01-01") + RNG.integers(0, 800, size=300)
    column, matrix = encoded(days)
    assert column.kind == "date"
    assert "the year and the week" in column.treatment
    numbers = (days - np.datetime64("1970-01-01")).astype(int)
    assert np.corrcoef(matrix[:, 0], numbers)[0, 1] > 0.9999
    weekday = (numbers - 4) % 7  # 1970 began on a Thursday; NumPy's count is independent of ours
    for day in range(7):
        assert np.ptp(matrix[weekday == day][:, 3:5], axis=0).max() < 1e-5
    assert len({tuple(row) for row in matrix[:, 3:5].round(3).tolist()}) == 7
    np.testing.assert_allclose((matrix[:, 1:3] ** 2).sum(axis=1), 1, rtol=1e-5)


def test_the_time_of_day_counts_where_there_is_one():
    hours = [f"2024-05-{1 + i // 24:02d}T{i % 24:02d}:00:00" for i in range(240)]
    column, matrix = encoded(hours)
    assert "the week and the day" in column.treatment
    np.testing.assert_allclose(matrix[0, -2:], matrix[24, -2:], atol=1e-5)
    assert np.abs(matrix[0, -2:] - matrix[12, -2:]).max() > 1


@pytest.mark.parametrize("text", ["2024-02-29", "2024/2/29", "2024-02-29T00:00:00Z", "2024-02-29 00:00"])
def test_iso_dates(text):
    expected = (datetime(2024, 2, 29, tzinfo=UTC).timestamp()) / 86_400
    assert cells.date(text) == expected


def test_days_and_months_first():
    expected = (datetime(2025, 12, 31, 6, tzinfo=UTC).timestamp()) / 86_400
    assert cells.day_first("31.12.2025 06:00") == cells.month_first("12/31/2025 06:00") == expected
    assert cells.month_first("31/12/2025") is None
    assert cells.date("2023-02-29") is None
    assert cells.day_first("") is not None
    assert math.isnan(cells.day_first(""))
    column, _ = encoded([f"{1 + i % 12:02d}/{1 + i % 7:02d}/2024" for i in range(60)])
    assert "month first would fit as well" in column.treatment
    column, _ = encoded([f"{1 + i % 12:02d}/{13 + i % 7:02d}/2024" for i in range(60)])
    assert column.treatment.startswith("month first")


UNUSED = {
    "the same in every row": ["7"] * 100,
    "the same in every row ('x')": ["x"] * 100,
    "empty in every row": ["", "NA"] * 50,
    "a different whole number in every row: an identifier": [*map(str, RNG.permutation(100) + 5000)],
    "100 different values in 100 rows: an identifier or free text": [f"note {i}" for i in range(100)],
    "says the same as the label": ["no" if i % 2 else "yes" for i in range(100)],
}


@pytest.mark.parametrize("why", UNUSED)
def test_what_cannot_help_is_left_out_with_a_word(why):
    column, matrix = encoded(UNUSED[why])
    assert column.kind == "not used"
    assert column.treatment.startswith(why)
    assert matrix.shape == (100, 0)


def test_whole_numbers_that_repeat_or_have_gaps_are_kept():
    assert encoded(RNG.integers(20, 60, size=100))[0].kind == "number"
    assert encoded(RNG.permutation(100) ** 2)[0].kind == "number"


def test_codes_that_look_like_numbers():
    values = RNG.integers(1, 4, size=90)
    assert encoded(values)[1].shape == (90, 1)
    assert encoded(values, categories=["x"])[1].shape == (90, 3)


def test_columns_in_the_order_in_which_they_tell_the_labels_apart():
    """η² of a column of numbers is a monotone function of the F statistic of scikit-learn."""
    y = RNG.integers(0, 3, size=300)
    columns = {f"x{i}": y * i + RNG.normal(size=300) for i in range(4)}
    encoding, matrix = fit_encoding(
        table(**columns, word=np.array(["a", "b", "c"])[RNG.permutation(y)], y=y), "y"
    )
    expected = np.argsort(-f_classif(matrix[:, :4], y)[0])
    assert [name for name in telling(encoding, matrix, y) if name != "word"] == [f"x{i}" for i in expected]
    assert telling(encoding, matrix, y)[0] == "x3"


def test_a_table_without_a_column_to_judge_by():
    with pytest.raises(TableError, match=r"no column to judge the labels by.*x: the same in every row"):
        fit_encoding(table(x=["1"] * 10, y=labels(10)), "y")
    with pytest.raises(TableError, match="there is no other column"):
        fit_encoding(table(x=range(10), y=labels(10)), "y", leave_out=["x"])
