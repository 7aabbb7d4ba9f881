"""A folder of checkpoints, written by Orbax: one run at a time, in the background, each whole or not there at all."""

import errno
import json
import logging
import math
import os
import re
import shutil
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bilevel.atomic_files import content_of, try_folder, write
from bilevel.locks import Lock
from bilevel.loop.devices.processes import Team

TEMPORARY, DAMAGED = ".unfinished", ".damaged"
ARRAYS, CONTENTS = "arrays", "contents.json"
LARGEST = 2**30  # bytes of contents that are read
SPARE = 64 * 2**10  # bytes of a disk that a checkpoint needs besides its arrays


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
        self.path, self._keep, self.team = path, keep, Team()
        self._lock: Lock | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[Any] | None = None

    def open(self) -> None:
        """What cannot be written into is found out here, before any work is done."""
        orbax()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            try_folder(self.path)
            self._lock = Lock(self.path)
        except BlockingIOError as error:
            raise ValueError(
                f"another run is writing checkpoints into {str(self.path)!r}: wait for it, or pass another folder"
            ) from error
        except OSError as error:
            raise ValueError(
                f"cannot write checkpoints into {str(self.path)!r} ({error.strerror or error}): pass another folder"
            ) from error
        for left in self.path.glob(f"[0-9]*{TEMPORARY}"):  # by a run that was killed
            if _is_number(left.name.removesuffix(TEMPORARY)):
                _remove(left)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bilevel-checkpoint")

    def save(self, number: int, contents: dict[str, Any], arrays: list[Any]) -> None:
        """Begins to write, and returns as soon as the arrays are copied; what was begun before must be finished."""
        held = [_held(array) for array in arrays]
        if self.team.several:  # who writes must not come between the others' messages: at once
            self._write(number, contents, held)
            return
        assert self._writer is not None
        self._writing = self._writer.submit(self._write, number, contents, held)

    def _write(self, number: int, contents: dict[str, Any], arrays: list[Any]) -> None:
        new = self.path / f"{number}{TEMPORARY}"
        try:
            self.team.lead(lambda: self._make_room(new, arrays))
            self.team.each(lambda: _write_arrays(new / ARRAYS, arrays))  # each process those that lie with it
            self.team.lead(lambda: self._seal(new, number, contents, arrays))
        except BaseException:  # what is left of it takes the room that the next one needs
            if self.team.leads:
                _remove(new)
            raise

    def _make_room(self, new: Path, arrays: list[Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        _remove(new)
        new.mkdir()  # an error if anything of that name is there: nothing is written through a link
        (new / ARRAYS).mkdir()
        self._hold()
        if shutil.disk_usage(new).free < sum(array.nbytes for array in arrays) + SPARE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _seal(self, new: Path, number: int, contents: dict[str, Any], arrays: list[Any]) -> None:
        _finish_arrays(new / ARRAYS, arrays)
        shapes = [[list(array.shape), str(array.dtype)] for array in arrays]
        text = json.dumps({**contents, "arrays": shapes, "files": _checksums(new)})
        sealed = {"text": text, "checksum": zlib.crc32(text.encode())}
        write(new / CONTENTS, json.dumps(sealed).encode())
        whole = self.path / str(number)
        if whole.is_symlink():  # to nowhere, or to a folder without a checkpoint
            _remove(whole)
        new.rename(whole)
        for old in numbers_in(self.path)[self._keep :]:
            _remove(self.path / str(old))

    def _hold(self) -> None:
        """The folder may have been deleted, and made again just now."""
        if self._lock is not None and not self._lock.holds(self.path):
            self._lock.close()
            try:
                self._lock = Lock(self.path)
            except BlockingIOError as error:
                raise OSError(errno.EBUSY, "another run has taken the folder") from error

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
            self._lock.close()
            self._lock = None


def numbers_in(path: Path) -> list[int]:
    """The numbers of the checkpoints in a folder, the newest first."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f"cannot read checkpoints from {str(path)!r} ({error.strerror or error})") from error
    ours = lambda name: any((path / name / part).exists() for part in (ARRAYS, CONTENTS))
    return sorted((int(name) for name in names if _is_number(name) and ours(name)), reverse=True)


def read_contents(path: Path, number: int) -> dict[str, Any]:
    """What a checkpoint says besides its arrays, once all its files are what was written."""
    here = path / str(number)
    try:
        sealed = json.loads(content_of(here / CONTENTS, LARGEST))
        text = sealed["text"]
        if zlib.crc32(text.encode()) != sealed["checksum"]:
            raise Damaged(f"{CONTENTS} is not what was written")
        contents = json.loads(text)
        found = _checksums(here)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{CONTENTS} cannot be read: {said(error)}") from error
    files = contents.get("files") if isinstance(contents, dict) else None
    for name, written in (files if isinstance(files, dict) else {"": 0}).items():
        if found.get(name) != written:
            raise Damaged(f"{name} is {'missing' if name not in found else 'not what was written'}")
    return contents


def read_arrays(path: Path, number: int, contents: dict[str, Any], places: list[Any]) -> list[Any]:
    """Its arrays: each where `places` says (a sharding), or in the host's memory (`None`, or nothing said)."""
    checkpointing, shapes = orbax(), contents["arrays"]
    places = places + [None] * (len(shapes) - len(places))
    how = {
        str(i): _restored(checkpointing, place, shape, dtype)
        for i, (place, (shape, dtype)) in enumerate(zip(places, shapes, strict=True))
        if math.prod(shape)
    }
    found: dict[str, Any] = {}
    try:
        if how:
            with Hush():
                handler = checkpointing.PyTreeCheckpointHandler()
                found = handler.restore(
                    epath(path / str(number) / ARRAYS),
                    args=checkpointing.args.PyTreeRestore(restore_args=how),
                )
                handler.close()
    except Exception as error:  # whatever Orbax and its file formats make of it
        raise Damaged(f"its arrays cannot be read: {said(error)}") from error
    empty = lambda shape, dtype: np.zeros(shape, jax.numpy.dtype(dtype))
    return [found[str(i)] if str(i) in how else empty(*each) for i, each in enumerate(shapes)]


def set_aside(path: Path, step: int) -> None:
    """A damaged checkpoint no longer counts, and its number is free again."""
    aside = path / f"{step}{DAMAGED}"
    with suppress(OSError):
        _remove(aside)
        (path / str(step)).rename(aside)


def _remove(path: Path) -> None:
    """Remove what has this name, if that is allowed; of a link, the link and not what it leads to."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _write_arrays(path: Path, arrays: list[Any]) -> None:
    full = {str(i): array for i, array in enumerate(arrays) if array.size}  # Orbax refuses empty arrays
    if full:
        checkpointing = orbax()
        with Hush():
            handler = checkpointing.PyTreeCheckpointHandler()
            handler.save(epath(path), args=checkpointing.args.PyTreeSave(full))
            handler.close()


def _finish_arrays(path: Path, arrays: list[Any]) -> None:
    """What all processes have written, as one."""
    if any(array.size for array in arrays):
        with Hush():
            handler = orbax().PyTreeCheckpointHandler()
            handler.finalize(epath(path))
            handler.close()


def _checksums(path: Path) -> dict[str, int]:
    """Of every file but the one that they are written into. They tell damage, not malice."""
    files = (each for each in sorted(path.rglob("*")) if each.is_file() and each != path / CONTENTS)
    return {each.relative_to(path).as_posix(): _checksum(each) for each in files}


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while part := file.read(2**20):
            value = zlib.crc32(part, value)
    return value


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and (name == "0" or not name.startswith("0"))


def _restored(checkpointing: Any, place: Any, shape: list[int], dtype: str) -> Any:
    if place is None:
        return checkpointing.RestoreArgs(restore_type=np.ndarray)
    return checkpointing.ArrayRestoreArgs(
        sharding=place, global_shape=tuple(shape), dtype=jax.numpy.dtype(dtype)
    )


def _held(array: Any) -> Any:
    """A copy in the host's memory, since the run's own buffers may be donated; of a part of an array, the array."""
    return np.array(array) if getattr(array, "is_fully_addressable", True) else array


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
