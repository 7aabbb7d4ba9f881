"""Parsers of two formats: IDX, of the MNIST files, and LIBSVM's text."""

import math
import re
import struct

import numpy as np

from bilevel.checks import check_count, check_kind

from .files import DataError, unpack

UNSIGNED_BYTE = 0x08
LIBSVM = "'target 1:value 2:value ...'"
# float() also accepts "nan", "1_000" and spaces.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
ENTRY = re.compile(r"([1-9]\d*):(.+)", re.ASCII)


def parse_idx(content: bytes, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the uint8 array of the given shape in an IDX file, gzipped or plain.

    The file starts with a big-endian header: the magic number 0x0000TTDD (type TT, here 0x08 for unsigned
    bytes; number of dimensions DD) and one 32-bit size per dimension. The values follow in C order. `name` is
    for error messages.
    """
    _check_file(content, name)
    check_kind(shape, tuple, "shape", "a tuple of sizes", "pass e.g. (60000, 28, 28)")
    for size in shape:
        check_count(size, "a size in shape", least=0)
    header = struct.Struct(f">{1 + len(shape)}I")
    expected = header.size + math.prod(shape)
    content = unpack(content, name, at_most=expected)
    if len(content) < header.size:
        raise DataError(
            f"{name}: {len(content)} bytes are too few for an IDX header of {header.size} bytes; "
            "the file is cut off or is no IDX file"
        )
    magic, *sizes = header.unpack_from(content)
    expected_magic = UNSIGNED_BYTE << 8 | len(shape)
    if magic != expected_magic:
        raise DataError(
            f"{name}: starts with the magic number {magic}, expected {expected_magic} "
            f"(IDX, unsigned bytes, {len(shape)} dimensions); this is another file or another format"
        )
    if tuple(sizes) != shape:
        raise DataError(f"{name}: holds an array of shape {tuple(sizes)}, expected {shape}")
    if len(content) != expected:
        amount = "fewer" if len(content) < expected else "more"
        raise DataError(
            f"{name}: holds {amount} than the {math.prod(shape)} values its header announces; "
            "the file is cut off or has trailing bytes"
        )
    return np.frombuffer(content, np.uint8, offset=header.size).reshape(shape)


def parse_libsvm(content: bytes, name: str, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `(inputs, targets)` in float64, inputs of shape (lines, features); missing features are zero.

    Each line is one example, `target 1:value 2:value ...`. Indices must rise within a line and be in
    1..features, and numbers must be finite. The last line must end with a newline. Otherwise a file that
    stops in the middle of a number would pass. `name` is for error messages.
    """
    _check_file(content, name)
    check_count(features, "features")
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: byte {error.start} is not ASCII; expected LIBSVM text ({LIBSVM})"
        ) from error
    lines = text.split("\n")
    if lines.pop():
        raise DataError(f"{name}, line {len(lines) + 1}: does not end with a newline; the file is cut off")
    if not lines:
        raise DataError(f"{name}: is empty; expected LIBSVM text ({LIBSVM})")
    inputs, targets = np.zeros((len(lines), features)), np.zeros(len(lines))
    for i, line in enumerate(lines):
        where = f"{name}, line {i + 1}"
        if not line.strip():
            raise DataError(f"{where}: is empty; expected {LIBSVM}")
        target, *entries = line.split()
        targets[i], last = _number(target, where), 0
        for entry in entries:
            match = ENTRY.fullmatch(entry)
            if match is None:
                raise DataError(f"{where}: {entry!r} is not 'index:value' with an index from 1")
            index = int(match[1])
            if index > features:
                raise DataError(f"{where}: index {index} in {entry!r}, but there are {features} features")
            if index <= last:
                raise DataError(f"{where}: index {index} follows index {last}; indices must rise")
            inputs[i, index - 1], last = _number(match[2], where), index
    return inputs, targets


def _check_file(content: bytes, name: str) -> None:
    check_kind(content, bytes, "content", "the bytes of a file", "pass path.read_bytes()")
    check_kind(name, str, "name", "a text", "pass the name of the file")


def _number(text: str, where: str) -> float:
    value = float(text) if NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {text!r} is not a finite decimal number")
    return value
