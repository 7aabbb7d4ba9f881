"""The folder that a command writes into: made, tried and taken before the work, so that none is done in vain."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bilevel.atomic_files import remove_parts, try_folder
from bilevel.locks import Lock


@contextmanager
def taken(folder: Path) -> Iterator[Path]:
    """The folder, made if need be, for this process alone; a `ValueError` says why it cannot be had.

    The lock is on the folder itself and ends with the process, however that ends. Where the file system knows no locks
    there is none: then two runs at once do each other's work twice, but every file is still whole.
    """
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
    try:
        with _explained(folder):
            remove_parts(folder)
            try_folder(folder)
        yield folder
    finally:
        lock.close()


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
