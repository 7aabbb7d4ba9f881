"""What becomes of each kind of column, against scikit-learn and NumPy's own dates."""

import math
from datetime import UTC, date, datetime, timedelta
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


def test_numbers_are_centerd_at_the_median_and_outliers_do_not_widen_the_scale():
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


SIZES = np.r_[np.exp(np.random.default_rng(1).normal(7, 1.5, size=198)), 12.5, 1_234_567.5]
GERMAN = str.maketrans(",.", ".,")
WRITTEN = {
    "1,234.56": ([f"{v:,.2f}" for v in SIZES], "commas between thousands"),
    "1,234": ([f"{v:,.0f}" for v in SIZES], "commas between thousands"),
    "1.234,56": ([f"{v:,.2f}".translate(GERMAN) for v in SIZES], "decimal comma"),
    "1234,56": ([f"{v:.2f}".replace(".", ",") for v in SIZES], "decimal comma"),
    "1.234 and 999": ([f"{v:,.0f}".translate(GERMAN) for v in SIZES], "dots between thousands"),
    "1 234.56": ([f"{v:,.2f}".replace(",", " ") for v in SIZES], ""),
    "1 234,56": ([f"{v:,.2f}".replace(",", "\u202f").replace(".", ",") for v in SIZES], "decimal comma"),
    "1'234.56": ([f"{v:,.2f}".replace(",", "’") for v in SIZES], ""),
    "$1,234.56": ([f"${v:,.2f}" for v in SIZES], "commas between thousands"),
    "−1.234,56 €": ([f"-{v:,.2f} €".translate(GERMAN) for v in SIZES], "decimal comma"),
    "56.7 %": ([f"{v:.1f} %" for v in SIZES], ""),
    "1e3": ([f"{v:.3e}" for v in SIZES], ""),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_numbers_as_people_write_them(form):
    """Read as others would: the order is that of the true values."""
    cells_, words = WRITTEN[form]
    column, matrix = encoded(cells_)
    assert column.kind == "number"
    assert column.treatment.startswith(words)
    truth = -SIZES if "−" in form else SIZES
    rounded = truth.round() if form in ("1,234", "1.234 and 999") else truth
    np.testing.assert_allclose(matrix, encoded(np.round(rounded, 2))[1], atol=0.02)


def test_what_could_be_read_in_two_ways_is_told():
    column, _ = encoded([f"{1000 + i:,}" if i % 3 else "950" for i in range(90)])
    assert column.treatment == "commas between thousands (decimal commas would fit as well)"
    column, _ = encoded([f"{1000 + i:,}".replace(",", ".") if i % 3 else "950" for i in range(90)])
    assert column.treatment == "dots between thousands (decimal points would fit as well)"


@pytest.mark.parametrize(
    "odd", ["3.13.4", "10.58.201.45", "1,23,456", "1.23.456,7", "12:30:61", "1,2.3", "5 $ 3", "--3", ""]
)
def test_what_only_looks_like_a_number(odd):
    readers = (cells.number, cells.number_with_thousands, cells.number_with_comma)
    found = [read(odd) for read in readers]
    assert all(value is None for value in found) if odd else all(math.isnan(value) for value in found)


def test_decimals_with_three_places_stay_decimals():
    values = np.random.default_rng(2).normal(size=100) ** 2
    column, matrix = encoded([f"{v:.3f}" for v in values])
    assert column.treatment == ""
    np.testing.assert_allclose(matrix, encoded(np.round(values, 3))[1], atol=1e-6)


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%d/%m/%Y", "%Y-%m-%d", "%Y.%m.%d"])
def test_dates_in_every_promised_form_are_the_same(form):
    days = [
        date(2023, 1, 1) + timedelta(days=int(d)) for d in np.random.default_rng(3).integers(0, 800, size=300)
    ]
    column, matrix = encoded([f"{day:{form}}" for day in days])
    assert column.kind == "date"
    np.testing.assert_array_equal(matrix, encoded([day.isoformat() for day in days])[1])


def test_times_of_day():
    column, matrix = encoded([f"{i % 24}:{i % 60:02d}" for i in range(240)])
    assert column.kind == "time"
    assert "place in the day" in column.treatment
    angle = 2 * np.pi * (np.arange(240) % 24 + np.arange(240) % 60 / 60) / 24
    np.testing.assert_allclose(matrix[:, 1:], np.stack([np.sin(angle), np.cos(angle)], axis=1), atol=1e-5)


def test_spaces_do_not_hide_a_copy_of_the_label():
    copy = ["A" if i % 2 == 0 else "B" for i in range(100)]
    assert encoded([" A", *copy[1:]])[0].kind == "not used"


def test_categories_become_indicators():
    values = RNG.choice(["red", "green", "blue", "gray"], size=200, p=[0.4, 0.3, 0.2, 0.1])
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
