"""Readers of whole files. They raise instead of returning a part of a file."""

import gzip
import io
import zlib
from importlib.resources import files
from importlib.resources.abc import Traversable

GZIP_MAGIC = b"\x1f\x8b"


class DataError(ValueError):
    """Error for a data file that is missing, cut off, corrupt or unexpected; the message names it."""


def bundled(name: str) -> Traversable:
    """Return a file that ships with the package."""
    return files("bilevel.data") / "bundled" / name


def read(path: Traversable, at_most: int) -> bytes:
    """Return the content of a file, or raise before reading more than `at_most` bytes into memory."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            content = stream.read(at_most + 1) if size <= at_most else b""
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); expected a data file"
        ) from error
    if max(size, len(content)) > at_most:
        raise DataError(
            f"{path}: holds {size:,} bytes, expected at most {at_most:,}; this is another file, or a damaged one"
        )
    return content


def unpack(content: bytes, name: str, at_most: int) -> bytes:
    """Return `content`, decompressed if it is gzip; at most `at_most` + 1 bytes are ever produced.

    The extra byte shows the caller that there was more. Gzip compares its checksum only after the last byte.
    """
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            return stream.read(at_most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{name}: the gzip stream is cut off or damaged ({error}); replace the file by a fresh copy"
        ) from error
