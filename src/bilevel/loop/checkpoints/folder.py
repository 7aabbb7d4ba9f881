"""Folder of checkpoints of one run at a time, written by Orbax in the background, always complete."""

import errno
import json
import logging
import math
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bilevel.atomic_files import content_of, try_folder, write
from bilevel.checks import check_path
from bilevel.locks import Lock
from bilevel.loop.policies import Alone
from bilevel.words import shown

TEMPORARY, DAMAGED = ".unfinished", ".damaged"
ARRAYS, CONTENTS = "arrays", "contents.json"
LARGEST = 2**30  # bytes of contents that are read
SPARE = 64 * 2**10  # bytes of a checkpoint on the disk in addition to its arrays


def orbax() -> Any:
    """Return Orbax's module of checkpoints; raise if it is not installed."""
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError(
            'checkpoints need Orbax, which is not installed: pip install "bilevel[checkpoint]"'
        ) from error
    return orbax.checkpoint


class Damaged(Exception):
    """Error for a checkpoint that differs from the one that was written."""


class Folder:
    """Folder that one run writes into. Another run on this machine is refused.

    Each checkpoint is a folder with a number as name. It is written under a temporary name and then renamed.
    """

    def __init__(self, path: Path, keep: int):
        self.path, self._keep = path, keep
        self.team: Alone = Alone()
        self._lock: Lock | None = None
        self._writer: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Lock the folder for this run; raise if it cannot be written into."""
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

    def save(self, number: int, contents: dict[str, Any], arrays: list[Any]) -> Callable[[], None]:
        """Start to write, and return once the arrays are copied. Call the result to wait, before the next call."""
        # Copies on the host, as the run may donate its arrays. An array of several processes stays.
        held = [np.array(a) if getattr(a, "is_fully_addressable", True) else a for a in arrays]
        if self.team.several:  # a background thread would come between the messages of the processes
            self._write(number, contents, held)
            return lambda: None
        assert self._writer is not None
        return self._writer.submit(self._write, number, contents, held).result

    def _write(self, number: int, contents: dict[str, Any], arrays: list[Any]) -> None:
        new = self.path / f"{number}{TEMPORARY}"
        try:
            self.team.lead(lambda: self._make_room(new, arrays))
            self.team.each(lambda: _write_arrays(new / ARRAYS, arrays))  # each process its own arrays
            self.team.lead(lambda: self._seal(new, number, contents, arrays))
        except BaseException:  # free the space for the next one
            if self.team.leads:
                _remove(new)
            raise

    def _make_room(self, new: Path, arrays: list[Any]) -> None:
        _remove(new)
        new.mkdir(parents=True)  # raises if the name exists, so nothing is written through a link
        (new / ARRAYS).mkdir()
        self._hold()
        if shutil.disk_usage(new).free < sum(array.nbytes for array in arrays) + SPARE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _seal(self, new: Path, number: int, contents: dict[str, Any], arrays: list[Any]) -> None:
        if any(array.size for array in arrays):
            with _handler_of(new / ARRAYS) as (handler, path):
                handler.finalize(path)  # joins the files of all processes
        shapes = [[list(array.shape), str(array.dtype)] for array in arrays]
        text = json.dumps({**contents, "arrays": shapes, "files": _checksums(new)})
        sealed = {"text": text, "checksum": zlib.crc32(text.encode())}
        write(new / CONTENTS, json.dumps(sealed).encode())
        whole = self.path / str(number)
        if whole.is_symlink():  # to no target, or to a folder without a checkpoint
            _remove(whole)
        new.rename(whole)
        for old in numbers_in(self.path)[self._keep :]:
            _remove(self.path / str(old))

    def _hold(self) -> None:
        """Lock the folder again if it was deleted and made again."""
        if self._lock is not None and not self._lock.holds(self.path):
            self._lock.close()
            try:
                self._lock = Lock(self.path)
            except BlockingIOError as error:
                raise OSError(errno.EBUSY, "another run has taken the folder") from error

    def close(self) -> None:
        if self._writer is not None:
            self._writer.shutdown(wait=True)
        if self._lock is not None:
            self._lock.close()
        self._writer = self._lock = None


def numbers_in(path: Path) -> list[int]:
    """Return the numbers of the checkpoints in a folder, the newest first."""
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f"cannot read checkpoints from {str(path)!r} ({error.strerror or error})") from error
    ours = lambda name: any((path / name / part).exists() for part in (ARRAYS, CONTENTS))
    return sorted((int(name) for name in names if _is_number(name) and ours(name)), reverse=True)


def read_contents(path: Path, number: int) -> dict[str, Any]:
    """Return the plain data of a checkpoint; raise `Damaged` unless all its files have their checksums."""
    here = path / str(number)
    try:
        sealed = json.loads(content_of(here / CONTENTS, LARGEST))
        text = sealed["text"]
        if zlib.crc32(text.encode()) != sealed["checksum"]:
            raise Damaged(f"{CONTENTS} is not what was written")
        contents = json.loads(text)
        files, found = contents["files"].items(), _checksums(here)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{CONTENTS} cannot be read: {reason(error)}") from error
    for name, written in files:
        if found.get(name) != written:
            raise Damaged(f"{name} is {'missing' if name not in found else 'not what was written'}")
    return contents


def read_arrays(path: Path, number: int, contents: dict[str, Any], places: list[Any]) -> list[Any]:
    """Return the arrays of a checkpoint, each at its sharding in `places`, or on the host for `None`."""
    arrays = [(tuple(shape), jax.numpy.dtype(dtype)) for shape, dtype in contents["arrays"]]
    how, found = dict[str, Any](), dict[str, Any]()
    for i, ((shape, dtype), place) in enumerate(zip_longest(arrays, places)):
        if math.prod(shape):
            how[str(i)] = (
                orbax().RestoreArgs(restore_type=np.ndarray)
                if place is None
                else orbax().ArrayRestoreArgs(sharding=place, global_shape=shape, dtype=dtype)
            )
    try:
        if how:
            with _handler_of(path / str(number) / ARRAYS) as (handler, at):
                found = handler.restore(at, args=orbax().args.PyTreeRestore(restore_args=how))
    except Exception as error:  # Orbax and its file formats raise errors of many kinds
        raise Damaged(f"its arrays cannot be read: {reason(error)}") from error
    return [found[str(i)] if str(i) in how else np.zeros(*array) for i, array in enumerate(arrays)]


def set_aside(path: Path, step: int) -> None:
    """Rename a damaged checkpoint, so that its number is free again."""
    aside = path / f"{step}{DAMAGED}"
    with suppress(OSError):
        _remove(aside)
        (path / str(step)).rename(aside)


def _remove(path: Path) -> None:
    """Remove a file, a folder or a link (but not its target), if that is allowed."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _write_arrays(path: Path, arrays: list[Any]) -> None:
    full = {str(i): array for i, array in enumerate(arrays) if array.size}  # Orbax refuses empty arrays
    if full:
        with _handler_of(path) as (handler, at):
            handler.save(at, args=orbax().args.PyTreeSave(full))


@contextmanager
def _handler_of(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open Orbax's handler of arrays, with the path as it takes it.

    Silence Orbax's log, which repeats the errors that it raises.
    """
    from etils import epath  # a dependency of Orbax

    log, quiet = logging.getLogger("absl"), lambda record: "orbax" not in record.pathname
    log.addFilter(quiet)
    try:
        handler = orbax().PyTreeCheckpointHandler()
        yield handler, epath.Path(path)
        handler.close()
    finally:
        log.removeFilter(quiet)


def _checksums(path: Path) -> dict[str, int]:
    """Return the checksum of every file except the contents, against damage but not against malice."""
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


def reason(error: BaseException) -> str:
    """Return an error in a few words, from the operating system if possible."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if number := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(number[1]))
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{': ' if first else ''}{first[:200]}"


def as_folder(folder: Any, name: str) -> Path:
    """Return an absolute path, so that a program may change its working directory. Raise without Orbax."""
    if not isinstance(folder, str | Path) or not str(folder) or "\0" in str(folder):
        raise TypeError(f'{name} must be a folder, such as "runs/first", not {shown(folder)}')
    try:
        path = check_path(folder, name).expanduser().absolute()
        str(path).encode()  # Orbax wants its names in UTF-8
        is_file = path.exists() and not path.is_dir()
    except (OSError, RuntimeError, UnicodeError) as error:
        raise ValueError(
            f"{name}={str(folder)!r} cannot be a folder ({reason(error)}): pass another"
        ) from error
    if is_file:
        raise ValueError(f"{name}={str(folder)!r} is a file: pass a folder")
    orbax()
    return path
