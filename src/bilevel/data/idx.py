"""IDX format of the MNIST files."""

import math
import struct

import numpy as np

from bilevel.checks import check_count, check_kind

from .errors import DataError
from .files import unpack

UNSIGNED_BYTE = 0x08


def parse_idx(content: bytes, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the uint8 array of the given shape in an IDX file, gzipped or plain.

    The file starts with a big-endian header: the magic number 0x0000TTDD (type TT, here 0x08 for unsigned
    bytes; number of dimensions DD) and one 32-bit size per dimension. The values follow in C order. `name` is
    for error messages.
    """
    check_kind(content, bytes, "content", "the bytes of a file", "pass path.read_bytes()")
    check_kind(name, str, "name", "a text", "pass the name of the file")
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
