"""A folder of checkpoints, written by Orbax: one run at a time, in the background, each whole or not there at all."""

import json
import logging
import os
import shutil
import tempfile
import zlib
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
TEMPORARY = ".orbax-checkpoint-tmp"
DAMAGED = ".damaged"
ARRAYS, CONTENTS = "arrays", "contents"
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
    """A folder that a run writes into. Another run, of this process or any other on the machine, is refused."""

    def __init__(self, path: Path, keep: int):
        self.path, self._keep = path, keep
        self._lock, self._manager = None, None

    def open(self) -> None:
        """What cannot be written into is found out here, before any work is done."""
        checkpointing = orbax()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise ValueError(
                f"cannot write checkpoints into {str(self.path)!r} ({error.strerror or error}): pass another folder"
            ) from error
        self._take()
        options = checkpointing.CheckpointManagerOptions(
            max_to_keep=self._keep,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            create=True,
        )
        self._hush = Hush()
        self._hush.__enter__()
        self._manager = checkpointing.CheckpointManager(self.path, options=options)

    def save(self, step: int, contents: dict[str, Any], arrays: list[Any]) -> None:
        """Begins to write; returns as soon as the arrays are copied. Raises what went wrong with an earlier one."""
        checkpointing = orbax()
        held = [_held(array) for array in arrays]
        text = json.dumps({**contents, "checksums": [_checksum(array) for array in held]})
        sealed = {"text": text, "checksum": zlib.crc32(text.encode())}
        full = {str(i): array for i, array in enumerate(held) if array.size}  # Orbax refuses empty arrays
        items = checkpointing.args.Composite(
            **{
                CONTENTS: checkpointing.args.JsonSave(sealed),
                ARRAYS: checkpointing.args.PyTreeSave(full or {"nothing": np.zeros(1)}),
            }
        )
        self._manager.save(step, args=items, force=True)

    def finish(self) -> None:
        """Waits for what is being written, and raises what went wrong with it."""
        self._manager.wait_until_finished()
        self._manager.check_for_errors()

    def clear_failed(self) -> None:
        """What a failed write left behind takes the room that the next one needs."""
        with suppress(OSError):
            for left in self.path.glob(f"*{TEMPORARY}"):
                shutil.rmtree(left, ignore_errors=True)

    def close(self) -> None:
        if self._manager is not None:
            with suppress(Exception):
                self._manager.close()
            self._manager = None
            self._hush.__exit__()
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
        except OSError:
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
        sealed = json.loads((path / str(step) / CONTENTS / "metadata").read_text())
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
            with Hush(), checkpointing.PyTreeCheckpointer() as reader:
                found = reader.restore(
                    path / str(step) / ARRAYS,
                    args=checkpointing.args.PyTreeRestore(item={name: 0 for name in how}, restore_args=how),
                )
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
    """The first line of what an error says."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}{': ' if first else ''}{first[:200]}"


class Hush(logging.Filter):
    """Orbax logs with whole tracebacks what it raises as well; while this is entered, it is said only once."""

    def __enter__(self) -> "Hush":
        logging.getLogger("absl").addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("absl").removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname
