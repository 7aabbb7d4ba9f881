"""The worker in a process of its own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

BESIDE = Path(__file__).parents[1]
SOURCE = BESIDE.parent / "src"
PATIENCE = 300  # seconds: a worker that takes longer hangs


def environment(cache: Path) -> dict[str, str]:
    """With a cache for compiled programs: a run that is started fifty times compiles once."""
    paths = [str(SOURCE), str(BESIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONFAULTHANDLER": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


class Worker:
    """A run under way in another process."""

    def __init__(self, folder: Path, steps: int, cache: Path, *options: str):
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.worker", str(folder), str(steps), *options],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment(cache),
        )

    def line(self) -> str:
        """The next line it prints; an empty one at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ended(self) -> tuple[int, str, str]:
        """Its exit status, what it printed and what it complained about."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        self.errors.seek(0)
        with self.errors as errors:
            return self.process.returncode, out, errors.read()


def outcome(text: str) -> tuple[int, str, str]:
    """Steps, digest and status of a run that ended."""
    last = next(line for line in text.splitlines() if line.startswith("done "))
    _, steps, digest, status = last.split(" ", 3)
    return int(steps), digest, status
