"""The folder that a command writes into, checked before the work."""

from pathlib import Path


def writable(folder: Path) -> Path:
    """The folder, made if need be, or a `ValueError` that says why nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"cannot write into {folder} ({reason}): name another folder with --out") from error
    return folder
