"""The folder that a command writes into: made, tried and taken before the work, so that none is done in vain."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bilevel.writing import new_part, remove_parts

PROBE = bytes(4096)  # a full disk still takes empty files


@contextmanager
def taken(folder: Path) -> Iterator[Path]:
    """The folder, made if need be, for this process alone; a `ValueError` says why it cannot be had.

    The lock is on the folder itself and ends with the process, however that ends. Where the file system knows no locks
    there is none: then two runs at once do each other's work twice, but every file is still whole.
    """
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
    try:
        with _explained(folder):
            remove_parts(folder)
            _try(folder)
        yield folder
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise ValueError(
            f"another bilevel is writing into {folder}: wait until it has ended, or name another folder with --out"
        ) from error
    except FileExistsError as error:
        raise ValueError(
            f"cannot write into {folder}, which is no folder: name another one with --out"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a name that no folder can have
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ValueError(f"cannot write into {folder} ({reason}): name another folder with --out") from error


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the lock until it is closed."""
    if sys.platform == "win32":
        return None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _try(folder: Path) -> None:
    probe = new_part(folder / "writable")
    try:
        probe.write_bytes(PROBE)
    finally:
        probe.unlink(missing_ok=True)
