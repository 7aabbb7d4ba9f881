"""Where a data set is taken from: a named folder, else the cache, else a download on request."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bilevel.checks import check_path

from .cache import cache_directory
from .errors import DataError

Directory = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Found:
    """The files, in the order asked for, and where they lie, in words for a report."""

    files: tuple[Path, ...]
    place: str


def locate(
    names: Sequence[str], directory: Directory, download: Callable[[str, Path], None] | None
) -> Found | None:
    """All files of `names` from one place, or None where only the bundled data are left.

    1. `directory`, else `$BILEVEL_DATA`: must hold every file. Whoever names a folder means it, so a missing
       file is an error and never a silent change of data.
    2. The cache, if it holds every file.
    3. If `download` is given: the cache, after `download(name, path)` of the files it lacks.
    """
    named = directory if directory is not None else os.environ.get("BILEVEL_DATA") or None
    if named is not None:
        folder = check_path(named, "directory").expanduser()
        files = [_present(folder, name) for name in names]
        missing = [name for name, file in zip(names, files, strict=True) if file is None]
        if missing:
            raise DataError(
                _missing_files(folder, missing, "directory" if directory is not None else "BILEVEL_DATA")
            )
        return Found(tuple(file for file in files if file is not None), str(folder))

    cache = cache_directory()
    lacking = [name for name in names if not (cache / name).is_file()]
    if lacking:
        if download is None:
            return None
        for name in lacking:
            download(name, cache / name)
    return Found(tuple(cache / name for name in names), f"the cache ({cache})")


def _present(folder: Path, name: str) -> Path | None:
    """The file, or its unpacked form: both are common, and the readers take both."""
    candidates = (folder / name, folder / name.removesuffix(".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _missing_files(folder: Path, missing: list[str], named_by: str) -> str:
    problem = f"the folder {folder} (named by {named_by})"
    fix = f"put the file there, or leave {named_by} unset to use the cache or what is bundled"
    if not folder.is_dir():
        return f"{problem} does not exist or is no folder; expected {', '.join(missing)} in it; {fix}"
    return f"{problem} lacks {', '.join(missing)}; {fix}"
