"""IDX: what was written is read, and nothing else passes."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bilevel.data import DataError, parse_idx

VALUES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
PLAIN = struct.pack(">IIII", 2051, 2, 3, 4) + VALUES.tobytes()
PACKED = gzip.compress(PLAIN, mtime=0)


@pytest.mark.parametrize("content", [PLAIN, PACKED], ids=["plain", "gzip"])
def test_reads_the_values(content):
    array = parse_idx(content, "images", (2, 3, 4))
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, VALUES)


def test_labels_have_one_dimension():
    content = struct.pack(">II", 2049, 3) + bytes([7, 0, 9])
    np.testing.assert_array_equal(parse_idx(content, "labels", (3,)), [7, 0, 9])


@pytest.mark.parametrize("content", [PLAIN, PACKED], ids=["plain", "gzip"])
def test_every_truncation_is_an_error_that_names_the_file(content):
    for length in range(len(content)):
        with pytest.raises(DataError, match=r"^some/images: "):
            parse_idx(content[:length], "some/images", (2, 3, 4))


@pytest.mark.slow
@given(position=st.integers(0, len(PACKED) - 1), flip=st.integers(1, 255))
def test_a_damaged_byte_never_changes_a_value(position, flip):
    damaged = bytearray(PACKED)
    damaged[position] ^= flip
    try:
        array = parse_idx(bytes(damaged), "images", (2, 3, 4))
    except DataError:
        return
    np.testing.assert_array_equal(array, VALUES)  # a byte that carries no data, such as gzip's time stamp


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PLAIN + b"\0", "more than the 24 values"),
        (gzip.compress(PLAIN + b"\0", mtime=0), "more than the 24 values"),
        (PACKED + b"junk", "gzip stream is cut off or damaged"),
        (struct.pack(">IIII", 2052, 2, 3, 4) + VALUES.tobytes(), "magic number 2052, expected 2051"),
        (struct.pack(">IIII", 2051, 2, 4, 3) + VALUES.tobytes(), r"shape \(2, 4, 3\), expected \(2, 3, 4\)"),
        (b"<html>Not Found</html>", "another file or another format"),
        (b"", "0 bytes are too few"),
    ],
)
def test_foreign_content(content, message):
    with pytest.raises(DataError, match=message):
        parse_idx(content, "images", (2, 3, 4))


def test_a_file_that_unpacks_to_much_more_is_not_unpacked(monkeypatch):
    """The reader asks gzip for one byte more than it needs, however much there is."""
    asked = []
    original = gzip.GzipFile.read
    monkeypatch.setattr(
        gzip.GzipFile, "read", lambda self, size=-1: asked.append(size) or original(self, size)
    )
    with pytest.raises(DataError, match="more than the 24 values"):
        parse_idx(gzip.compress(PLAIN + bytes(10_000_000), mtime=0), "images", (2, 3, 4))
    assert asked == [len(PLAIN) + 1]
