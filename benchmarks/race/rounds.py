"""The contestants of a task: judged first, then timed in turn, each round asking every one of them for one run."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from contestants import CONTESTANTS, Contestant, Entry

from race import reference, tasks

BESIDE = Path(__file__).parents[1]
SOURCE = BESIDE.parent / "src"
TOLERANCES = [
    10.0**-k for k in range(5, 11)
]  # of solves, from loose to tight: the first that is right is timed


@dataclass
class Row:
    """What is known of one contestant in one task. `seconds` are those of an outer step, `first` of the first run."""

    task: str
    name: str
    how: str
    verdict: str  # "right", "wrong", or why there is none
    error: float | None = None
    tolerance: float | None = None
    first: float | None = None
    peak: int | None = None
    seconds: tuple[float, ...] = ()

    @property
    def quartiles(self) -> tuple[float, float, float]:
        lower, median, upper = np.percentile(self.seconds, [25, 50, 75])
        return float(lower), float(median), float(upper)


def environment(threads: int) -> dict[str, str]:
    """The same number of threads for every library, and no compiled program from another day."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    paths = [str(SOURCE), str(BESIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
    fresh = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    return os.environ | counts | fresh | {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}


class Process:
    """One contestant at work, and the file that it leaves its first iterates in."""

    def __init__(
        self, module: str, entry: Entry, size: str, tolerance: float, threads: int, file: Path, clock: str
    ):
        self.file = file
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        asked = (module, entry.method, entry.task, size, tolerance, threads, file, clock)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "race.worker", *map(str, asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            bufsize=1,
            env=environment(threads),
        )

    def answer(self) -> dict:
        """The next line; the reason, if there is none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        last = [line for line in self.errors.read().splitlines() if line.strip()][-1:]
        return {"failed": last[0] if last else f"exit status {self.process.returncode}"}

    def again(self) -> dict:
        assert self.process.stdin is not None
        self.process.stdin.write("again\n")
        return self.answer()

    def iterates(self) -> reference.Iterates:
        with np.load(self.file, allow_pickle=False) as arrays:
            x, *y = (arrays[name] for name in arrays.files)
        return x, tuple(y)

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()
        self.errors.close()


@dataclass(frozen=True)
class Race:
    name: str  # of the task
    size: str
    threads: int
    room: Path  # for files
    clock: str = "perf_counter"  # of the timed runs; `process_time` counts the work of the process alone

    def run(self, rounds: int, contestants: tuple[Contestant, ...] = CONTESTANTS) -> list[Row]:
        """One begins after the other, alone; then come the rounds of those that are right."""
        task = getattr(tasks, self.size)[self.name]()
        entries = [(c, entry) for c in contestants for entry in c.entries if entry.task == self.name]
        expected = {
            entry.iterates: reference.iterates(entry.iterates, task)
            for entry in dict.fromkeys(e for _, e in entries)
        }
        begun = [self.begin(c, entry, task, expected[entry.iterates]) for c, entry in entries]
        for _ in range(rounds):
            for row, process in begun:
                if row.verdict == "right":
                    self.time(row, process)
        for _, process in begun:
            process.close()
        return [row for row, _ in begun]

    def begin(
        self, contestant: Contestant, entry: Entry, task: tasks.Task, expected: reference.Iterates
    ) -> tuple[Row, Process]:
        """After the first run, with the loosest tolerance that is right: the row so far, and the process."""
        row = Row(entry.task, contestant.name, entry.how, "wrong")
        file = self.room / f"{contestant.module}-{entry.method}.npz"
        for tolerance in TOLERANCES if task.solved else [0.0]:
            process = Process(contestant.module, entry, self.size, tolerance, self.threads, file, self.clock)
            told = process.answer()
            if "first" not in told:
                row.verdict = (
                    f"failed: {told['failed']}" if "failed" in told else f"not installed: {told['missing']}"
                )
                break
            row.first, row.tolerance = told["first"], tolerance or None
            row.error = reference.error(task, process.iterates(), expected)
            if row.error <= task.tolerance:
                row.verdict = "right"
                break
            process.close()
        print(f"{self.name}: {row.name}, {row.how}: {row.verdict}", file=sys.stderr, flush=True)
        return row, process

    def time(self, row: Row, process: Process) -> None:
        told = process.again()
        if "failed" in told:
            row.verdict = f"failed: {told['failed']}"
        else:
            row.seconds, row.peak = (*row.seconds, told["seconds"]), told["peak"]
