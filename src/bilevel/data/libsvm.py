"""LIBSVM's text format: `target 1:value 2:value ...`, one example per line."""

import math
import re

import numpy as np

from bilevel.checks import check_count, check_kind

from .errors import DataError

# float() also accepts "nan", "1_000" and spaces.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
ENTRY = re.compile(r"([1-9]\d*):(.+)", re.ASCII)


def parse_libsvm(content: bytes, name: str, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `(inputs, targets)` in float64, inputs of shape (lines, features); missing features are zero.

    Indices must rise within a line and be in 1..features, and numbers must be finite. The last line must end
    with a newline. Otherwise a file that stops in the middle of a number would pass. `name` is for error messages.
    """
    check_kind(content, bytes, "content", "the bytes of a file", "pass path.read_bytes()")
    check_kind(name, str, "name", "a text", "pass the name of the file")
    check_count(features, "features")
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: byte {error.start} is not ASCII; expected LIBSVM text ('target 1:value 2:value ...')"
        ) from error
    lines = text.split("\n")
    if lines.pop():
        raise DataError(f"{name}, line {len(lines) + 1}: does not end with a newline; the file is cut off")
    if not lines:
        raise DataError(f"{name}: is empty; expected LIBSVM text ('target 1:value 2:value ...')")
    inputs, targets = np.zeros((len(lines), features)), np.zeros(len(lines))
    for i, line in enumerate(lines):
        where = f"{name}, line {i + 1}"
        if not line.strip():
            raise DataError(f"{where}: is empty; expected 'target 1:value 2:value ...'")
        target, *entries = line.split()
        targets[i] = _number(target, where)
        last = 0
        for entry in entries:
            match = ENTRY.fullmatch(entry)
            if match is None:
                raise DataError(f"{where}: {entry!r} is not 'index:value' with an index from 1")
            index = int(match[1])
            if index > features:
                raise DataError(f"{where}: index {index} in {entry!r}, but there are {features} features")
            if index <= last:
                raise DataError(f"{where}: index {index} follows index {last}; indices must rise")
            inputs[i, index - 1] = _number(match[2], where)
            last = index
    return inputs, targets


def _number(text: str, where: str) -> float:
    value = float(text) if NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {text!r} is not a finite decimal number")
    return value
