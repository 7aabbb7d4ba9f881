"""SIGKILL at random moments, again and again, and the same call made anew each time: nothing may differ at the end.

python -m faults.kills --kills 50
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from faults.process import Worker, outcome

STEPS, SAVE_EVERY = 1500, 20


@dataclass(frozen=True)
class Killed:
    """A run that was killed so many times before it came to its end."""

    kills: int
    starts: int
    same: bool  # every bit of it, as in the undisturbed run


def undisturbed(folder: Path, cache: Path, steps: int = STEPS) -> str:
    """The digest of the run that nobody disturbs and that saves nothing."""
    status, out, errors = Worker(folder, steps, cache, "--plain").ended()
    if status != 0:
        raise RuntimeError(errors)
    return outcome(out)[1]


def killed(
    folder: Path,
    cache: Path,
    expected: str,
    moments: random.Random,
    may: Callable[[], bool],
    steps: int = STEPS,
):
    """One run, killed as long as `may` says so."""
    kills = starts = 0
    while True:
        worker, starts = Worker(folder, steps, cache, "--save-every", str(SAVE_EVERY)), starts + 1
        begun = ""
        if may():
            if moments.random() < 0.8:  # most while it works, some while it begins
                begun = worker.line()  # that it is ready, or done already
                time.sleep(moments.uniform(0, 0.6))
            else:
                time.sleep(moments.uniform(0, 4))
            worker.process.kill()
        status, out, errors = worker.ended()
        if status == -9:
            kills += 1
            continue
        if status != 0:
            raise RuntimeError(f"exit status {status}: {errors[-2000:]}")
        return Killed(kills, starts, outcome(begun + out)[1] == expected)


def kill_runs(kills: int, at_once: int = 2, seed: int = 0, steps: int = STEPS) -> list[Killed]:
    """Runs until so many processes have been killed."""
    left, lock = kills, threading.Lock()

    def may() -> bool:
        nonlocal left
        with lock:
            left -= 1
            return left >= 0

    def chain(number: int) -> list[Killed]:
        moments, runs = random.Random(1000 * seed + number), []
        while left > 0:
            folder = Path(room) / f"{number}-{len(runs)}"
            runs.append(killed(folder, cache, expected, moments, may, steps))
        return runs

    with tempfile.TemporaryDirectory() as room:
        cache = Path(room) / "cache"
        expected = undisturbed(Path(room) / "plain", cache, steps)
        with ThreadPoolExecutor(at_once) as pool:
            return [run for runs in pool.map(chain, range(at_once)) for run in runs]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the moments; printed")
    options = parser.parse_args()
    runs = kill_runs(options.kills, options.at_once, options.seed)
    kills, starts = sum(run.kills for run in runs), sum(run.starts for run in runs)
    same = sum(run.same for run in runs)
    print(
        f"seed {options.seed}: {kills} kills, {starts} starts, {same} of {len(runs)} runs ended bit for bit the same"
    )
    return 0 if same == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
