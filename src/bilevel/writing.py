"""Files that appear whole or not at all, whatever happens meanwhile: a kill, a full disk, another reader."""

import os
import re
import secrets
from pathlib import Path

PART = re.compile(r"\..+\.[0-9a-f]{16}\.part")  # the names of files that are still being written


class Unsaved(OSError):
    """A file could not be written. What had its name before, or nothing, is there as it was."""

    def __init__(self, path: Path, reason: str, number: int | None = None):
        super().__init__(number, reason, str(path))
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} ({self.reason})"


def write(path: Path, content: bytes) -> Path:
    """Write `content` to `path`, making its folder if need be, with the permissions of any new file (umask).

    Other readers see the old state or all of the new one, nothing between: the bytes go to a temporary file in the
    same folder, to the disk, and only then get their name. Raises `Unsaved`.
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


def new_part(path: Path) -> Path:
    """A name beside `path` that nobody else uses."""
    return path.parent / f".{path.name}.{secrets.token_hex(8)}.part"


def remove_parts(folder: Path) -> None:
    """Removes what a killed process has left unfinished; only while nobody else writes into the folder."""
    for path in folder.iterdir():
        if PART.fullmatch(path.name):
            path.unlink(missing_ok=True)
