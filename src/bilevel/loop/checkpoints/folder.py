"""A folder of checkpoints, written by Orbax: one run at a time, in the background, each whole or not there at all."""

import errno
import json
import logging
import os
import re
import shutil
import tempfile
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bilevel.loop.checkpoints.trees import checksum

try:
    import fcntl
except ImportError:  # where there are no such locks, only this process is told apart
    fcntl = None

LOCK = "in-use"
TEMPORARY, DAMAGED = ".unfinished", ".damaged"
ARRAYS, CONTENTS = "arrays", "contents.json"
SPARE = 64 * 2**10  # bytes of a disk that a checkpoint needs besides its arrays
_ours: set[str] = set()  # folders that runs of this process are writing into


def orbax() -> Any:
    """Orbax, or an error that names the extra."""
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError(
            'checkpoints need Orbax, which is not installed: pip install "bilevel[checkpoint]"'
        ) from error
    return orbax.checkpoint


class Damaged(Exception):
    """A checkpoint that is not what was written."""


class Folder:
    """A folder that a run writes into. Another run, of this process or any other on the machine, is refused.

    A checkpoint is a folder of its own, with a number for a name: written under another name, and renamed when whole.
    """

    def __init__(self, path: Path, keep: int):
        self.path, self._keep = path, keep
        self._lock: Any = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future | None = None

    def open(self) -> None:
        """What cannot be written into is found out here, before any work is done."""
        orbax()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
            self._take()
        except OSError as error:
            raise ValueError(
                f"cannot write checkpoints into {str(self.path)!r} ({error.strerror or error}): pass another folder"
            ) from error
        for left in self.path.glob(f"*{TEMPORARY}"):  # by a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bilevel-checkpoint")

    def save(self, number: int, contents: dict[str, Any], arrays: list[Any]) -> None:
        """Begins to write, and returns as soon as the arrays are copied; what was begun before must be finished."""
        assert self._writer is not None
        held = [_held(array) for array in arrays]
        text = json.dumps({**contents, "checksums": [_checksum(array) for array in held]})
        self._writing = self._writer.submit(self._write, number, text, held)

    def _write(self, number: int, text: str, arrays: list[Any]) -> None:
        checkpointing = orbax()
        new = self.path / f"{number}{TEMPORARY}"
        needed = len(text) + sum(array.nbytes for array in arrays) + SPARE
        try:
            (new / ARRAYS).mkdir(parents=True)
            if shutil.disk_usage(new).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with (new / CONTENTS).open("w") as file:
                json.dump({"text": text, "checksum": zlib.crc32(text.encode())}, file)
                file.flush()
                os.fsync(file.fileno())
            full = {
                str(i): array for i, array in enumerate(arrays) if array.size
            }  # Orbax refuses empty arrays
            if full:
                with Hush():
                    handler = checkpointing.PyTreeCheckpointHandler()
                    handler.save(epath(new / ARRAYS), args=checkpointing.args.PyTreeSave(full))
                    handler.finalize(epath(new / ARRAYS))
                    handler.close()
            new.rename(self.path / str(number))
        except BaseException:  # what is left of it takes the room that the next one needs
            shutil.rmtree(new, ignore_errors=True)
            raise
        for old in steps_in(self.path)[self._keep :]:
            shutil.rmtree(self.path / str(old), ignore_errors=True)

    def finish(self) -> None:
        """Waits for what is being written, and raises what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.shutdown(wait=True)
            self._writer = self._writing = None
        if self._lock is not None:
            _ours.discard(os.path.realpath(self.path))
            self._lock.close()
            self._lock = None

    def _take(self) -> None:
        name = os.path.realpath(self.path)
        taken = ValueError(
            f"another run is writing checkpoints into {str(self.path)!r}: wait for it, or pass another folder"
        )
        if name in _ours:
            raise taken
        # A lock on a record of the file: it goes with the process, however that ends, and forked children have none.
        lock = (self.path / LOCK).open("a")
        try:
            if fcntl is not None:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise taken from None
        self._lock = lock
        _ours.add(name)


def steps_in(path: Path) -> list[int]:
    """The numbers of the checkpoints in a folder, the newest first."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f"cannot read checkpoints from {str(path)!r} ({error.strerror or error})") from error
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def read_contents(path: Path, step: int) -> dict[str, Any]:
    """What a checkpoint says besides its arrays."""
    try:
        sealed = json.loads((path / str(step) / CONTENTS).read_text())
        text = sealed["text"]
        if zlib.crc32(text.encode()) != sealed["checksum"]:
            raise Damaged("its contents are not what was written")
        return json.loads(text)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"its contents cannot be read: {said(error)}") from error


def read_arrays(path: Path, step: int, contents: dict[str, Any], places: list[Any]) -> list[Any]:
    """Its arrays: each where `places` says (a sharding), or in the host's memory (`None`)."""
    checkpointing = orbax()
    sums = contents["checksums"]
    full = [i for i, each in enumerate(sums) if each["size"]]
    places = places + [None] * (len(sums) - len(places))
    how = {str(i): _restored(checkpointing, places[i], sums[i]) for i in full}
    found: dict[str, Any] = {}
    try:
        if full:
            with Hush():
                handler = checkpointing.PyTreeCheckpointHandler()
                found = handler.restore(
                    epath(path / str(step) / ARRAYS), args=checkpointing.args.PyTreeRestore(restore_args=how)
                )
                handler.close()
    except Exception as error:  # whatever Orbax and its file formats make of damage
        raise Damaged(f"its arrays cannot be read: {said(error)}") from error
    arrays = [
        found[str(i)] if each["size"] else np.zeros(each["shape"], jax.numpy.dtype(each["dtype"]))
        for i, each in enumerate(sums)
    ]
    for array, each in zip(arrays, sums, strict=True):
        if each["crc"] is not None and _addressable(array) and checksum(np.asarray(array)) != each["crc"]:
            raise Damaged("its arrays are not what was written")
    return arrays


def set_aside(path: Path, step: int) -> None:
    """A damaged checkpoint no longer counts, and its number is free again."""
    aside = path / f"{step}{DAMAGED}"
    with suppress(OSError):
        shutil.rmtree(aside, ignore_errors=True)
        (path / str(step)).rename(aside)


def _restored(checkpointing: Any, place: Any, each: dict[str, Any]) -> Any:
    if place is None:
        return checkpointing.RestoreArgs(restore_type=np.ndarray)
    return checkpointing.ArrayRestoreArgs(
        sharding=place, global_shape=tuple(each["shape"]), dtype=jax.numpy.dtype(each["dtype"])
    )


def _held(array: Any) -> Any:
    """A copy in the host's memory, since the run's own buffers may be donated; of a part of an array, the array."""
    return np.array(array) if _addressable(array) else array


def _addressable(array: Any) -> bool:
    return getattr(array, "is_fully_addressable", True)


def _checksum(array: Any) -> dict[str, Any]:
    crc = checksum(array) if isinstance(array, np.ndarray) else None
    return {"shape": list(array.shape), "dtype": str(array.dtype), "size": int(array.size), "crc": crc}


def said(error: BaseException) -> str:
    """What went wrong, in a few words; the operating system's, where they are to be found."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if number := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(number[1]))
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{': ' if first else ''}{first[:200]}"


def epath(path: Path) -> Any:
    """As Orbax wants it."""
    from etils import epath  # which Orbax brings

    return epath.Path(path)


class Hush(logging.Filter):
    """Orbax logs with whole tracebacks what it raises as well; while this is entered, it is said only once."""

    def __enter__(self) -> "Hush":
        logging.getLogger("absl").addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("absl").removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname
