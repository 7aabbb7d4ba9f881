"""LIBSVM text: round trips, and one clear error per way of being wrong."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from bilevel.data import DataError, parse_libsvm

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.slow
@given(arrays.arrays(float, st.tuples(st.integers(1, 6), st.integers(2, 5)), elements=finite))
def test_round_trip_is_exact(table):
    targets, inputs = table[:, 0], table[:, 1:]
    text = "".join(
        f"{target!r} " + " ".join(f"{j}:{value!r}" for j, value in enumerate(row, 1) if value) + "\n"
        for target, row in zip(targets.tolist(), inputs.tolist(), strict=True)
    )
    read_inputs, read_targets = parse_libsvm(text.encode(), "file", features=inputs.shape[1])
    np.testing.assert_array_equal(read_inputs, inputs)
    np.testing.assert_array_equal(read_targets, targets)


def test_number_formats_of_published_copies():
    inputs, targets = parse_libsvm(b"-6.6155884121655362e-001 1:+.5 3:-8.\r\n1 2:1E3 \n", "file", features=3)
    np.testing.assert_array_equal(targets, [-0.66155884121655362, 1.0])
    np.testing.assert_array_equal(inputs, [[0.5, 0.0, -8.0], [0.0, 1000.0, 0.0]])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "is empty"),
        ("x 1:2", "'x' is not a finite decimal number"),
        ("1 1:nan", "'nan' is not a finite"),
        ("1 1:1e999", "'1e999' is not a finite"),
        ("1 1:1_0", "'1_0' is not a finite"),
        ("1 1:0x10", "'0x10' is not a finite"),
        ("1 1:", "'1:' is not 'index:value'"),
        ("1 2.5", r"'2\.5' is not 'index:value'"),
        ("1 0:2", "'0:2' is not 'index:value' with an index from 1"),
        ("1 -1:2", "'-1:2' is not 'index:value'"),
        ("1 1:2:3", "'2:3' is not a finite"),
        ("1 4:2", "index 4 in '4:2', but there are 3 features"),
        ("1 2:1 2:1", "index 2 follows index 2"),
        ("1 2:1 1:1", "index 1 follows index 2"),
        ("<html>", "'<html>' is not a finite"),
    ],
)
def test_a_bad_line_is_named(line, message):
    content = f"1 1:1\n{line}\n1 1:1\n".encode()
    with pytest.raises(DataError, match=f"^dir/file, line 2: .*{message}"):
        parse_libsvm(content, "dir/file", features=3)


def test_every_truncation_inside_a_line_is_an_error():
    content = b"1.25 1:2.5 2:3.75\n-1.25 1:2.5 2:3.75\n"
    for length in range(len(content)):
        if content[:length].endswith(b"\n"):
            continue  # a shorter file of whole lines: the caller counts them
        with pytest.raises(DataError, match=r"cut off|is empty"):
            parse_libsvm(content[:length], "file", features=2)


def test_binary_content():
    with pytest.raises(DataError, match=r"^file: byte 1 is not ASCII"):
        parse_libsvm(b"\x1f\x8b\x08", "file", features=2)
