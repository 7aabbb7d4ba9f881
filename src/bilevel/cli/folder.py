"""Output folder of a command, created, locked and tested before the work starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bilevel.atomic_files import remove_parts, try_folder
from bilevel.locks import Lock


@contextmanager
def taken(folder: Path) -> Iterator[Path]:
    """Lock the folder for this process, or raise a `ValueError` with the reason.

    The lock is on the folder itself and ends with the process. Some file systems have no locks. Two runs at
    once then do the same work twice, and every file is still complete.
    """
    lock = None
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder)
            remove_parts(folder)
            try_folder(folder)
        except BlockingIOError as error:
            fix = "wait until it has ended, or name another folder with --out"
            raise ValueError(f"another bilevel is writing into {folder}: {fix}") from error
        except FileExistsError as error:
            fix = "which is no folder: name another one with --out"
            raise ValueError(f"cannot write into {folder}, {fix}") from error
        except (OSError, ValueError) as error:  # ValueError: an impossible name
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            fix = "name another folder with --out"
            raise ValueError(f"cannot write into {folder} ({reason}): {fix}") from error
        yield folder
    finally:
        if lock is not None:
            lock.close()
