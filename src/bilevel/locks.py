"""Locks on folders, for one writer at a time."""

import os
import sys
import weakref
from pathlib import Path

_held: "weakref.WeakSet[Lock]" = weakref.WeakSet()


class Lock:
    """Lock on a folder until `close` or the end of the process; raise `BlockingIOError` if it is locked.

    The lock is on the folder itself and leaves no file. A forked child does not hold it. On file systems
    without locks, nothing is locked.
    """

    def __init__(self, folder: Path):
        self._descriptor: int | None = None
        if sys.platform == "win32":
            return
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:
            os.close(descriptor)
            return
        self._descriptor = descriptor
        _held.add(self)

    def holds(self, folder: Path) -> bool:
        """Return whether the lock is on the folder that has this name now; True where there are no locks."""
        if self._descriptor is None:
            return True
        return os.path.samestat(os.fstat(self._descriptor), os.stat(folder))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: [lock.close() for lock in _held])
