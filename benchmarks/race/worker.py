"""One contestant in one task, in a process of its own.

    python -m race.worker MODULE METHOD TASK SIZE TOLERANCE THREADS FILE CLOCK

The first run's x and y go to the file. Then it speaks JSON lines: the time of that run, and one time for every line
it is sent. Whatever the libraries print goes to the standard error.
"""

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from race import tasks


def resident() -> int:
    """Bytes of memory held now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The most bytes held since the last `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def seconds(run, clock):
    began = clock()
    found = run()
    return clock() - began, found


def main(
    module: str, method: str, name: str, size: str, tolerance: str, threads: str, file: str, clock: str
) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # XLA counts the cores it may run on; PyTorch is told by the environment too
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    task = getattr(tasks, size)[name]()
    try:
        make = getattr(importlib.import_module(f"contestants.{module}"), method)
    except ImportError as problem:
        print(json.dumps({"missing": str(problem)}), file=answers)
        return
    before = resident()
    forget_peak()
    run = make(task, float(tolerance))
    first, (x, y) = seconds(run, time.perf_counter)
    np.savez(file, x, *y)
    print(json.dumps({"first": first}), file=answers)
    for _ in sys.stdin:
        taken, _ = seconds(run, getattr(time, clock))
        print(json.dumps({"seconds": taken / task.steps, "peak": peak() - before}), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
