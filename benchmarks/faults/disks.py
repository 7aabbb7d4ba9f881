"""Signals, full and read-only disks, folders that vanish: the run goes on, or ends with its result, and says so."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.process import Worker, outcome

SMALL = "256k"  # room for two or three of the worker's checkpoints, with their temporary copies


@contextmanager
def small_disk(place: Path, size: str = SMALL) -> Iterator[Path | None]:
    """A file system of that size, or `None` where mounting is not allowed."""
    place.mkdir(parents=True)
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True
        )
    except FileNotFoundError:  # no such command
        made = None
    if made is None or made.returncode != 0:
        yield None
        return
    try:
        yield place
    finally:
        while subprocess.run(["umount", "-l", str(place)], capture_output=True).returncode == 0:
            pass  # once for every mount


def run_with(folder: Path, cache: Path, steps: int, fault: Callable[[Worker], object], save_every: int = 20):
    """The worker's exit status, steps, digest and status, and its complaints, with a fault injected once it works."""
    worker = Worker(folder, steps, cache, "--save-every", str(save_every))
    worker.line()
    fault(worker)
    status, out, errors = worker.ended()
    said = outcome(out) if "done " in out else (None, None, "")
    return status, *said, errors


def term(worker: Worker) -> None:
    worker.process.send_signal(signal.SIGTERM)


def interrupt(worker: Worker) -> None:
    worker.process.send_signal(signal.SIGINT)


def fill(disk: Path) -> Callable[[Worker], None]:
    """Nothing is left of it."""

    def fault(worker: Worker) -> None:
        with (disk / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(1024))
            except OSError:
                pass

    return fault


def read_only(disk: Path) -> Callable[[Worker], None]:
    """As it looks to whoever opens a file from now on."""

    def fault(worker: Worker) -> None:
        for how in (["--bind"], ["-o", "remount,bind,ro"]):
            subprocess.run(["mount", *how, str(disk), str(disk)], check=True, capture_output=True)

    return fault


def delete(folder: Path) -> Callable[[Worker], object]:
    return lambda worker: shutil.rmtree(folder, ignore_errors=True)


def replace_by_file(folder: Path) -> Callable[[Worker], object]:
    """Deleted, and in the way of being made again."""

    def fault(worker: Worker) -> None:
        os.replace(folder, folder.with_name("gone"))
        folder.write_text("in the way")

    return fault
