"""Folder of a data set: a given one, else the cache, else the cache after a download on request."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilevel.checks import check_path

from .download import download as download_file
from .files import DataError, read

Directory = str | os.PathLike[str] | None


@dataclass(frozen=True)
class DataFile:
    """File of a data set. `parse` checks its content and raises a `DataError` that starts with the label."""

    name: str

    def parse(self, content: bytes, label: str) -> Any:
        raise NotImplementedError


def load(
    files: Sequence[DataFile], directory: Directory, at_most: int, urls: Callable[[str], list[str]] | None
) -> tuple[list[Any], str] | None:
    """Return the parsed files and the words for their place, or None if only bundled data are left.

    Args:
        files: the files of the data set, in order.
        directory: as the user passed it.
        at_most: the largest number of bytes of a file.
        urls: the addresses of a name, in the order to try; None if nothing may be downloaded.
    """
    parsers = {file.name: file.parse for file in files}
    fetch = urls and (lambda name, path: download_file(urls(name), path, parsers[name]))
    found = locate(list(parsers), directory, fetch)
    if found is None:
        return None
    paths, place = found
    pairs = zip(files, paths, strict=True)
    return [file.parse(read(path, at_most), str(path)) for file, path in pairs], place


def locate(
    names: Sequence[str], directory: Directory, download: Callable[[str, Path], None] | None
) -> tuple[list[Path], str] | None:
    """Return the paths of all `names` in one place and the words for it, or None if only bundled data are left.

    1. `directory`, else `$BILEVEL_DATA`, must hold every file: a missing file is an error, because other data would
       change the result silently.
    2. The cache, if it holds every file.
    3. If `download` is given: the cache, after `download(name, path)` of each missing file.
    """
    named = directory if directory is not None else os.environ.get("BILEVEL_DATA") or None
    if named is not None:
        folder = check_path(named, "directory").expanduser()
        # Unpacked files are as common as packed ones, and the readers accept both.
        both = [(folder / name, folder / name.removesuffix(".gz")) for name in names]
        files = [next(filter(Path.is_file, paths), paths[0]) for paths in both]
        if missing := ", ".join(path.name for path in files if not path.is_file()):
            source = "directory" if directory is not None else "BILEVEL_DATA"
            no_folder = f"does not exist or is no folder; expected {missing} in it"
            raise DataError(
                f"the folder {folder} (named by {source}) {f'lacks {missing}' if folder.is_dir() else no_folder}; "
                f"put the file there, or leave {source} unset to use the cache or what is bundled"
            )
        return files, str(folder)

    cache = cache_directory()
    paths = [cache / name for name in names]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        if download is None:
            return None
        for path in missing:
            download(path.name, path)
    return paths, f"the cache ({cache})"


def cache_directory() -> Path:
    """Return the folder of downloads: `$BILEVEL_CACHE`, else `bilevel` in this platform's cache directory.

    That is `$XDG_CACHE_HOME` if it is an absolute path, else `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on
    Windows and `~/.cache` elsewhere. The function creates nothing.
    """
    if named := os.environ.get("BILEVEL_CACHE"):
        return Path(named).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        local = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
        usual = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        base = Path(local) if local else usual
    return base / "bilevel"
