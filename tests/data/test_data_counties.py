"""The space_ga loader on the bundled counties and on a stand-in for the full files."""

import numpy as np
import pytest

from bilevel.data import SPACE_GA_FEATURES, DataError, counties, space_ga, space_ga_scale
from bilevel.data.counties import COUNTIES, bundled_counties
from bilevel.data.formats import parse_libsvm

# First lines of the two original files, as published.
FIRST = (
    "-6.6155884121655362e-001 1:9.9729203272514653e+000 2:9.2462864987496527e+000 3:9.0040539377283952e+000 \
4:1.2134914932463712e+001 5:-8.6641472000000000e+007 6:3.2542207000000000e+007"
)
FIRST_SCALED = "-0.661559 1:0.00592061 2:-0.00797148 3:0.0708837 4:-0.121748 5:0.327746 6:-0.373847"


def first_line(line: str) -> tuple[float, list[float]]:
    target, *entries = line.split()
    return float(target), [float(entry.split(":")[1]) for entry in entries]


def full_text(bundled, precision: int) -> str:
    """LIBSVM text of 3,107 lines: the bundled counties in their rows, the first of them in the rows that are left."""
    values = np.column_stack([bundled.targets, bundled.inputs])
    table = np.tile(values[:1], (COUNTIES, 1))
    table[bundled.rows] = np.column_stack([bundled.targets, bundled.inputs])
    lines = (
        f"{row[0]:.{precision}g} " + " ".join(f"{j}:{v:.{precision}g}" for j, v in enumerate(row[1:], 1))
        for row in table.tolist()
    )
    return "".join(line + "\n" for line in lines)


@pytest.fixture(scope="module")
def text():
    """What stands in for the original, whose terms do not let it be bundled: 43 of its counties are made up."""
    return full_text(bundled_counties(), 17)


@pytest.fixture(scope="module")
def digests(text):
    table = lambda text: np.column_stack(parse_libsvm(text.encode(), "stand-in", 6)[::-1])
    six = {"space_ga": bundled_counties(), "space_ga_scale": counties._bundled_scaled()}
    return (
        {"space_ga": counties.whole_numbers(table(text))},
        {name: counties.six_digits(table(full_text(own, 6))) for name, own in six.items()},
    )


@pytest.fixture
def published(monkeypatch, digests):
    """As if the stand-ins were the published files."""
    monkeypatch.setattr(counties, "WHOLE_NUMBERS", digests[0])
    monkeypatch.setattr(counties, "SIX_DIGITS", digests[1])


def test_bundled_counties(no_network):
    data = space_ga()
    assert data.source == "bundled space_ga (3,064 of 3,107 counties)"
    assert data.inputs.shape == (3064, len(SPACE_GA_FEATURES))
    assert data.inputs.dtype == data.targets.dtype == np.float64
    target, features = first_line(FIRST)
    np.testing.assert_allclose(data.inputs[0], features, rtol=4e-16)
    np.testing.assert_allclose(data.targets[0], target, rtol=4e-15)


def test_bundled_rows_are_counties_of_the_original():
    rows = bundled_counties().rows
    assert np.all(np.diff(rows) > 0)
    assert rows[0] == 0
    assert rows[-1] < COUNTIES


def test_bundled_counts_are_whole_and_consistent():
    """exp of the logarithms gives whole numbers, and no county has more educated than inhabitants."""
    data = space_ga()
    counts = np.exp(np.column_stack([data.inputs[:, :4], data.targets + data.inputs[:, 0]]))
    np.testing.assert_allclose(counts, np.rint(counts), rtol=1e-13)
    pop, education, houses, _income, votes = counts.T
    assert np.all(education < pop)
    assert np.all(houses < pop)
    assert np.mean(votes < pop) > 0.99  # voters are counted where they vote: a few counties have more


def test_bundled_scale_agrees_with_the_published_line():
    data = space_ga_scale()
    target, features = first_line(FIRST_SCALED)
    np.testing.assert_allclose(data.inputs[0], features, rtol=5e-6)
    np.testing.assert_allclose(data.targets[0], target, rtol=5e-6)
    np.testing.assert_array_equal(data.inputs.min(axis=0), -np.ones(6))
    np.testing.assert_array_equal(data.inputs.max(axis=0), np.ones(6))


@pytest.mark.slow
def test_full_file_from_a_folder(text, published, tmp_path, no_network):
    (tmp_path / "space_ga").write_text(text)
    data = space_ga(tmp_path)
    assert data.source == f"full space_ga from {tmp_path}"
    assert data.inputs.shape == (COUNTIES, 6)
    own = bundled_counties()
    np.testing.assert_array_equal(data.inputs[own.rows], own.inputs)
    np.testing.assert_array_equal(data.targets[own.rows], own.targets)


@pytest.mark.slow
def test_six_digits_are_enough(published, tmp_path):
    (tmp_path / "space_ga").write_text(full_text(bundled_counties(), 6))
    (tmp_path / "space_ga_scale").write_text(full_text(counties._bundled_scaled(), 6))
    assert len(space_ga(tmp_path)) == len(space_ga_scale(tmp_path)) == COUNTIES


@pytest.mark.slow
def test_the_scaled_file_is_not_taken_for_the_raw_one(tmp_path):
    (tmp_path / "space_ga").write_text(full_text(counties._bundled_scaled(), 6))
    with pytest.raises(DataError, match=r"line 1: POP is 0\.005920.* not space_ga's value"):
        space_ga(tmp_path)


def replace_line(text: str, number: int, line: str) -> str:
    lines = text.splitlines(keepends=True)
    lines[number - 1] = line + "\n"
    return "".join(lines)


def swap_lines(text: str) -> str:
    first, second, *others = text.splitlines(keepends=True)
    return "".join([second, first, *others])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[:-3], "line 3107: does not end with a newline"),
        (lambda text: text[: text.rindex("\n", 0, -1) + 1], "has 3106 lines, expected the 3107 counties"),
        (lambda text: text + FIRST + "\n", "has 3108 lines"),
        (lambda text: replace_line(text, 7, "abc"), "line 7: 'abc' is not a finite"),
        (lambda text: replace_line(text, 1, FIRST.replace("9.97", "9.98")), "line 1: POP is 9.98"),
        (lambda text: replace_line(text, 1, FIRST.rsplit(" ", 1)[0]), "line 1: YCOORD is 0"),
        (lambda text: replace_line(text, 1, FIRST + " 7:1"), "line 1: index 7 in '7:1', but there are 6"),
        (swap_lines, "line 1: the target is"),
        (lambda text: "", "is empty"),
    ],
)
def test_a_spoilt_file_is_named(text, tmp_path, spoil, message):
    (tmp_path / "space_ga").write_text(spoil(text))
    with pytest.raises(DataError, match=message) as caught:
        space_ga(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "space_ga"))


@pytest.mark.slow
def test_counties_that_are_not_bundled_must_lie_within_the_range(text, tmp_path):
    outside = np.setdiff1d(np.arange(COUNTIES), bundled_counties().rows)[0] + 1
    (tmp_path / "space_ga").write_text(replace_line(text, outside, FIRST.replace("5:-8.66", "5:+8.66")))
    with pytest.raises(DataError, match=f"line {outside}: XCOORD is 86641472"):
        space_ga(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "precision"), [(space_ga, 17), (space_ga, 6), (space_ga_scale, 6)])
def test_counties_that_were_made_up_are_not_the_data_set(tmp_path, load, precision):
    """43 lines that are counties by the look of them, in a file that is otherwise right."""
    own = bundled_counties() if load is space_ga else counties._bundled_scaled()
    (tmp_path / load.__name__).write_text(full_text(own, precision))
    with pytest.raises(DataError, match=r"values as a whole are not those published \(SHA-256\)"):
        load(tmp_path)


def last_digit(line: str) -> str:
    return line.replace("1:9.97292032725", "1:9.97292132725")


@pytest.mark.slow
@pytest.mark.parametrize("change", [last_digit, lambda line: line.replace("6:32542207", "6:32542207.25")])
def test_a_value_that_was_changed_a_little_is_noticed(text, published, tmp_path, change):
    """Within the tolerance that lets copies in other digits pass."""
    first, others = text.split("\n", 1)
    assert change(first) != first
    (tmp_path / "space_ga").write_text(change(first) + "\n" + others)
    with pytest.raises(DataError, match="not those published"):
        space_ga(tmp_path)


@pytest.mark.slow
def test_other_digits_of_the_same_numbers_are_the_same_data(text, published, tmp_path):
    """Twelve digits, and errors of a few units in the last place of a double: the counts are the same."""
    inputs, targets = parse_libsvm(text.encode(), "space_ga", 6)
    for values in (
        np.nextafter(inputs[:, :4], np.inf),
        np.vectorize(lambda v: float(f"{v:.12g}"))(inputs[:, :4]),
    ):
        assert counties.is_published("space_ga", np.column_stack([targets, values, inputs[:, 4:]]))


@pytest.mark.parametrize("value", [-1e308, 1e308, 800.0, -40.0])
def test_digests_of_wild_values_are_no_digests(value):
    table = np.full((3, 7), value)
    assert counties.whole_numbers(table) is None
    assert not counties.is_published("space_ga", table)


def test_a_damaged_bundled_table_is_noticed(monkeypatch):
    monkeypatch.setattr(counties, "unpack", lambda *content, **limit: b"row,fips\n1,2\n")
    with pytest.raises(DataError, match=r"is damaged .* install the package again"):
        space_ga()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="lacks space_ga_scale"):
        space_ga_scale(tmp_path)


@pytest.mark.slow
def test_download(text, published, server, cache, monkeypatch):
    monkeypatch.setattr(counties, "MIRROR", server.address + "/")
    server.answers["/space_ga"] = replace_line(text, 1, FIRST.replace("9.97", "9.98")).encode()
    with pytest.raises(DataError, match=r"POP is 9\.98"):
        space_ga(download=True)
    assert not cache.exists()
    server.answers["/space_ga"] = text.encode()
    assert space_ga(download=True).source == f"full space_ga from the cache ({cache})"
    assert [path.name for path in cache.iterdir()] == ["space_ga"]
    assert len(space_ga()) == COUNTIES


def test_downloads_go_to_an_https_address():
    assert counties.MIRROR.startswith("https://")
    assert counties.MIRROR.endswith("/")
