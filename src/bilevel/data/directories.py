"""Folder of a data set: a given one, else the cache, else the cache after a download on request."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bilevel.checks import check_path

from .download import download as download_file
from .errors import DataError
from .files import read

Directory = str | os.PathLike[str] | None


@runtime_checkable
class DataFile(Protocol):
    """File of a data set. `parse` checks its content and raises a `DataError` that starts with the label."""

    @property
    def name(self) -> str: ...

    def parse(self, content: bytes, label: str) -> Any: ...


@dataclass(frozen=True)
class Found:
    """Files in the order of their names, and the words for their place in a report."""

    files: tuple[Path, ...]
    place: str


def load(
    files: Sequence[DataFile], directory: Directory, at_most: int, urls: Callable[[str], list[str]] | None
) -> tuple[list[Any], str] | None:
    """Return the parsed files and their place, or None if only bundled data are left.

    Args:
        files: the files of the data set, in order.
        directory: as the user passed it.
        at_most: the largest number of bytes of a file.
        urls: the addresses of a name, in the order to try; None if nothing may be downloaded.
    """
    known = {file.name: file for file in files}
    fetch = urls and (lambda name, path: download_file(urls(name), path, known[name].parse))
    found = locate(list(known), directory, fetch)
    if found is None:
        return None
    pairs = zip(files, found.files, strict=True)
    return [file.parse(read(path, at_most), str(path)) for file, path in pairs], found.place


def locate(
    names: Sequence[str], directory: Directory, download: Callable[[str, Path], None] | None
) -> Found | None:
    """Return all files of `names` from one place, or None if only bundled data are left.

    1. `directory`, else `$BILEVEL_DATA`, must hold every file: a missing file is an error, because other data would
       change the result silently.
    2. The cache, if it holds every file.
    3. If `download` is given: the cache, after `download(name, path)` of each missing file.
    """
    named = directory if directory is not None else os.environ.get("BILEVEL_DATA") or None
    if named is not None:
        folder = check_path(named, "directory").expanduser()
        # Unpacked files are as common as packed ones, and the readers accept both.
        paths = {name: (folder / name, folder / name.removesuffix(".gz")) for name in names}
        files = {name: next((path for path in both if path.is_file()), None) for name, both in paths.items()}
        if missing := [name for name, file in files.items() if file is None]:
            raise DataError(
                _missing_files(folder, missing, "directory" if directory is not None else "BILEVEL_DATA")
            )
        return Found(tuple(file for file in files.values() if file is not None), str(folder))

    cache = cache_directory()
    missing = [name for name in names if not (cache / name).is_file()]
    if missing:
        if download is None:
            return None
        for name in missing:
            download(name, cache / name)
    return Found(tuple(cache / name for name in names), f"the cache ({cache})")


def _missing_files(folder: Path, missing: list[str], named_by: str) -> str:
    problem = f"the folder {folder} (named by {named_by})"
    fix = f"put the file there, or leave {named_by} unset to use the cache or what is bundled"
    if not folder.is_dir():
        return f"{problem} does not exist or is no folder; expected {', '.join(missing)} in it; {fix}"
    return f"{problem} lacks {', '.join(missing)}; {fix}"


def cache_directory() -> Path:
    """Return the folder of downloads: `$BILEVEL_CACHE`, else `bilevel` in this platform's cache directory.

    That is `$XDG_CACHE_HOME` if it is an absolute path, else `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on
    Windows and `~/.cache` elsewhere. The function creates nothing.
    """
    if named := os.environ.get("BILEVEL_CACHE"):
        return Path(named).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else _platform_cache()) / "bilevel"


def _platform_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local)
    return Path.home() / ".cache"
