"""Compiled programs are kept between two commands, so that the second one need not compile them again.

They are JAX's own compilation cache. JAX neither writes an entry in one piece nor always sees that one was damaged, and
what it loads is machine code. So the folder is the user's alone and has one command at a time; what a command leaves
there is listed with SHA-256 sums when it ends, and the next one removes whatever is not as it was listed, or was
compiled on another processor.
"""

import hashlib
import json
import os
import platform
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from bilevel.atomic_files import content_of, write
from bilevel.data.cache import cache_directory
from bilevel.locks import Lock

LARGEST = 256 * 2**20  # bytes of all entries; the oldest go first
QUICK_SECONDS = 0.1  # what is compiled in less is not kept
LIST = "sums.json"


@contextmanager
def programs_kept() -> Iterator[None]:
    """Within, what is compiled is kept, and what was kept is not compiled.

    A cache of the user's own is left as it is, and so is JAX's switch (`JAX_ENABLE_COMPILATION_CACHE=0`). Where there
    is no folder to be had, as on a full disk or while another command has it, all is compiled as if there were none.
    """
    folder = cache_directory() / "compiled"
    lock = None if _settled() else _taken(folder)
    if lock is None:
        yield
        return
    try:
        with _cached_in(folder):
            yield
    finally:
        with suppress(OSError):
            _shorten(folder)
            write(folder / LIST, json.dumps({"processor": _processor(), "sums": _sums(folder)}).encode())
        lock.close()


def _settled() -> bool:
    """Whether the user has said what to do."""
    on, where = (
        getattr(jax.config, name) for name in ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
    )
    return not on or where is not None


def _taken(folder: Path) -> Lock | None:
    """The folder for this process alone, with nothing in it that is not as it was listed; or None."""
    try:
        _make(folder)
        lock = Lock(folder)
    except (OSError, ValueError):  # ValueError: a name that no folder can have
        return None
    try:
        listed, found = _listed(folder), _sums(folder)
        for entry in folder.iterdir():
            if entry.name == LIST or (entry.is_dir() and not entry.is_symlink()):  # JAX loads no folders
                continue
            if entry.name not in found or listed.get(entry.name) != found[entry.name]:
                entry.unlink()
    except OSError:
        lock.close()
        return None
    return lock


def _make(folder: Path) -> None:
    """A folder that nobody else can write into or read, or an `OSError`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(str(folder))
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o077):
        raise PermissionError(str(folder))


@contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": QUICK_SECONDS,
        "jax_persistent_cache_enable_xla_caches": "none",  # folders of their own, of which there would be no list
    }
    before = {name: getattr(jax.config, name) for name in settings}
    with warnings.catch_warnings():  # what cannot be read or written is compiled: nobody need know
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache", UserWarning)
        try:
            for name, value in settings.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()  # which would go on with a folder that it had before
            yield
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()


def _entries(folder: Path) -> list[Path]:
    """All files but the list, the newest first. What is a link, a folder or a pipe is none."""
    found = [(entry.lstat(), entry) for entry in folder.iterdir() if entry.name != LIST]
    files = [(about.st_mtime, entry) for about, entry in found if stat.S_ISREG(about.st_mode)]
    return [entry for _, entry in sorted(files, reverse=True)]


def _sums(folder: Path) -> dict[str, str]:
    """Of the entries that are not larger than all of them may be."""
    found = (entry for entry in _entries(folder) if entry.stat().st_size <= LARGEST)
    return {entry.name: hashlib.sha256(entry.read_bytes()).hexdigest() for entry in found}


def _listed(folder: Path) -> dict[str, str]:
    """The sums of what may be used here."""
    try:
        listed = json.loads(content_of(folder / LIST, LARGEST))
        return {**listed["sums"]} if listed["processor"] == _processor() else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _processor() -> str:
    """What machine code depends on: a home folder may be that of many machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return hashlib.sha256("\n".join(sorted(told)).encode()).hexdigest()


def _shorten(folder: Path) -> None:
    size = 0
    for entry in _entries(folder):
        size += entry.stat().st_size
        if size > LARGEST:
            entry.unlink()
