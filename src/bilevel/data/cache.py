"""Where downloaded files are kept between runs."""

import os
import sys
from pathlib import Path


def cache_directory() -> Path:
    """`$BILEVEL_CACHE`, else the folder `bilevel` in the user's cache directory of this platform.

    That is `$XDG_CACHE_HOME` where it is set to an absolute path (the XDG specification has others ignored),
    else `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows and `~/.cache` elsewhere. Nothing is created.
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
