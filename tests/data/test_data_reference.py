"""The bundled data against the original files, where BILEVEL_DATA names them."""

import numpy as np
import pytest

from bilevel.data import DataError, mnist, space_ga, space_ga_scale
from bilevel.data.counties import bundled_counties


@pytest.mark.slow
def test_every_bundled_image_is_in_mnist_with_its_label(reference):
    full, bundled = mnist(reference), mnist()
    assert (len(full.train), len(full.test)) == (60_000, 10_000)
    label_of = {
        image.tobytes(): label for image, label in zip(full.train.inputs, full.train.targets, strict=True)
    }
    held_out = {image.tobytes() for image in full.test.inputs}
    for part in (bundled.train, bundled.test):
        images = [image.tobytes() for image in part.inputs]
        np.testing.assert_array_equal([label_of.get(image, -1) for image in images], part.targets)
        assert held_out.isdisjoint(images)


def counts(inputs, targets):
    return np.rint(np.exp(np.column_stack([inputs[:, :4], targets + inputs[:, 0]])))


def test_how_many_counties_have_counts_without_a_common_factor(reference):
    """As docs/about/data.md says."""
    full = space_ga(reference)
    factors = np.gcd.reduce(counts(full.inputs, full.targets).astype(int), axis=1)
    assert (np.sum(factors == 1), len(factors)) == (3_008, 3_107)


def test_every_bundled_county_is_that_of_space_ga(reference):
    full, own = space_ga(reference), bundled_counties()
    inputs, targets = full.inputs[own.rows], full.targets[own.rows]
    np.testing.assert_array_equal(counts(own.inputs, own.targets), counts(inputs, targets))
    np.testing.assert_array_max_ulp(own.inputs[:, :4], inputs[:, :4], maxulp=1)
    # A difference of two logarithms below 16, each good to one unit in the last place of 1.8e-15.
    np.testing.assert_allclose(own.targets, targets, rtol=0, atol=4e-15)


def test_bundled_coordinates(reference):
    full, own = space_ga(reference), bundled_counties()
    longitude, latitude = full.inputs[own.rows, 4:].T
    np.testing.assert_array_equal(own.inputs[:, 5], latitude)
    rounded = own.inputs[:, 4] != longitude
    assert np.sum(rounded) == 531
    assert np.all(np.abs(longitude[rounded]) > 100e6)
    np.testing.assert_allclose(own.inputs[:, 4], longitude, rtol=0, atol=5)


def test_bundled_scale(reference):
    full, own = space_ga_scale(reference), space_ga_scale()
    rows = bundled_counties().rows
    np.testing.assert_allclose(own.inputs, full.inputs[rows], rtol=5e-6, atol=5e-7)
    np.testing.assert_allclose(own.targets, full.targets[rows], rtol=5e-6)


def test_first_line_and_size_of_space_ga(reference):
    full = space_ga(reference)
    assert full.inputs.shape == (3107, 6)
    assert full.targets[0] == -6.6155884121655362e-001
    assert full.inputs[0, 0] == 9.9729203272514653


@pytest.mark.slow
def test_copies_in_six_digits_are_taken_and_in_eight_are_not(reference, tmp_path):
    """Eight digits are neither the published numbers nor those of a copy that is known."""
    full = space_ga(reference)
    for digits, accepted in ((6, True), (15, True), (8, False)):
        rows = np.column_stack([full.targets, full.inputs[:, :4]]).tolist()
        places = full.inputs[:, 4:].tolist()
        (tmp_path / "space_ga").write_text(
            "".join(
                " ".join(
                    [
                        f"{row[0]:.{digits}g}",
                        *(f"{j}:{v:.{digits}g}" for j, v in enumerate(row[1:] + place, 1)),
                    ]
                )
                + "\n"
                for row, place in zip(rows, places, strict=True)
            )
        )
        if accepted:
            assert len(space_ga(tmp_path)) == 3107
        else:
            with pytest.raises(DataError, match="not those published"):
                space_ga(tmp_path)
