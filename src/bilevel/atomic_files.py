"""Files that appear whole or not at all, in spite of kills, full disks and other readers."""

import os
import re
import secrets
import stat
from pathlib import Path

PART = re.compile(r"\..+\.[0-9a-f]{16}\.part")  # the names of files that are still being written


class Unsaved(OSError):
    """Error: a file could not be written. An earlier file of this name is unchanged."""

    def __init__(self, path: Path, reason: str, number: int | None = None):
        super().__init__(number, reason, str(path))
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} ({self.reason})"


def write(path: Path, content: bytes) -> Path:
    """Write `content` to `path`, and create its folder; the file has the permissions of any new file (umask).

    Other readers see the old file or the whole new one: the bytes go to a temporary file in the same folder, are
    flushed to the disk, and only then get their name. Raises `Unsaved`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = new_part(path)
        try:
            with part.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(path)
        except BaseException:  # also Ctrl-C: the temporary file must go
            part.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise Unsaved(path, reason, getattr(error, "errno", None)) from error
    return path


def try_folder(folder: Path) -> None:
    """Raise `OSError` if the folder is not writable, also on a full disk, which still accepts empty files."""
    probe = new_part(folder / "writable")
    try:
        probe.write_bytes(bytes(4096))
    finally:
        probe.unlink(missing_ok=True)


def content_of(path: Path, at_most: int) -> bytes:
    """Return the bytes of a file; raise `ValueError` if it is no regular file or too large."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > at_most:  # reading a pipe would wait forever
        raise ValueError(f"{path} is no regular file of at most {at_most:,} bytes")
    with path.open("rb") as file:
        return file.read(at_most)


def new_part(path: Path) -> Path:
    """Return an unused name in the folder of `path`."""
    return path.parent / f".{path.name}.{secrets.token_hex(8)}.part"


def remove_parts(folder: Path) -> None:
    """Remove the unfinished files of killed processes. Call it only while no other process writes into the
    folder.
    """
    for path in folder.iterdir():
        if PART.fullmatch(path.name):
            path.unlink(missing_ok=True)
