"""Bytes in, bytes out: whole files or an error, never a part of one."""

import gzip
import io
import os
import tempfile
import zlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from .errors import DataError

GZIP_MAGIC = b"\x1f\x8b"


def bundled(name: str) -> Traversable:
    """A file that ships with the package."""
    return files("bilevel.data") / "bundled" / name


def read(path: Traversable) -> bytes:
    """The content of a file, as it lies there."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); expected a data file"
        ) from error


def unpack(content: bytes, name: str, at_most: int) -> bytes:
    """`content` decompressed if it is gzip, else itself; at most `at_most` + 1 bytes are ever produced.

    The extra byte lets the caller see that there was more. Reading past the last expected byte also makes gzip
    compare its checksum, so that a damaged file cannot pass.
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


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that other readers see the old state or all of the new one, nothing between.

    The bytes go to a temporary file in the same folder, to the disk, and only then get their name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with open(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:  # also Ctrl-C: the temporary file must go
        Path(temporary).unlink(missing_ok=True)
        raise
