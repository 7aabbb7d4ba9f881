"""Faults injected, survived, lost: the tables of docs/about/reliability.md.

    python benchmarks/reliability.py [--kills 50] [--at-once 2] [--only kills disks]

Needs the extra `test`. Leaves with status 1 if anything was not survived that should have been: .ci/run asks for it.
With `--quick` no process is started, and one kind of damage is done.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import record
from faults import disks, kills
from faults.damage import DAMAGES, damaged_checkpoints
from faults.process import Worker

ROOT = Path(__file__).parents[1]
STEPS = 1000
ENDLESS = 10**6
LIBRARIES = ("orbax-checkpoint",)


def killed(given: Namespace) -> bool:
    seed = time.time_ns() % 10**6
    runs = [] if given.quick else kills.kill_runs(given.kills, at_once=given.at_once, seed=seed)
    died, same = sum(run.kills for run in runs), sum(run.same for run in runs)
    rows = {
        "kills": died,
        "starts": sum(run.starts for run in runs),
        "runs": len(runs),
        "of them ended bit for bit the same": same,
    }
    record.table("reliability-kills", ("what", "number"), rows.items(), given.record, libraries=LIBRARIES)
    return given.quick or (same == len(runs) and died >= given.kills * 0.8)


def signaled_and_full(given: Namespace) -> bool:
    columns = ("what happens to it", "exit status", "what becomes of the run")
    with tempfile.TemporaryDirectory() as room:
        rows = [("SIGTERM", "–", "not tried")] if given.quick else list(scenarios(Path(room)))
    record.table("reliability-disks", columns, rows, given.record, libraries=LIBRARIES)
    return not any("NOT AS PROMISED" in then for _, _, then in rows)


def scenarios(room: Path) -> Iterator[tuple]:
    """What was done, with which exit status the program left, what became of the run."""
    cache = room / "cache"
    expected = kills.undisturbed(room / "plain", cache, STEPS)

    def told(what: str, outcome: tuple, good: Callable[..., bool], then: str) -> tuple:
        return what, outcome[0], then if good(*outcome) else "**NOT AS PROMISED**"

    def goes_on(folder: Path) -> bool:
        status, out, _ = Worker(folder, STEPS, cache).ended()
        return status == 0 and f" {expected} " in out

    whole = lambda status, steps, digest, said, errors: (status, steps, digest) == (0, STEPS, expected)
    said = lambda words: (
        lambda *outcome: (
            whole(*outcome)
            and words in outcome[3]
            and "Not every checkpoint could be saved" in outcome[3]
            and "RuntimeWarning" in outcome[4]
            and "Traceback" not in outcome[4]
        )
    )

    for what, fault, status in (("SIGTERM", disks.term, 143), ("SIGINT (Ctrl-C)", disks.interrupt, 130)):
        folder = room / what.split()[0]
        outcome = disks.run_with(folder, cache, STEPS, fault, save_every=ENDLESS)
        left = lambda *outcome, status=status, folder=folder: outcome[0] == status and goes_on(folder)
        yield told(what, outcome, left, "saved; the same call goes on, bit for bit")

    for number, (what, fault, words) in enumerate(
        (
            ("the disk fills up", disks.fill, "No space left on device"),
            ("the disk becomes read-only", disks.read_only, "Read-only file system"),
        )
    ):
        with disks.small_disk(room / f"disk{number}", "400k") as disk:
            if disk is None:
                yield what, "–", "not tried: mounting is not allowed here"
                continue
            folder = room / f"on-disk{number}"
            folder.mkdir()
            (folder / "checkpoints").symlink_to(disk)
            outcome = disks.run_with(folder, cache, STEPS, fault(disk))
        then = f"all steps taken; the status says {words!r} and which step is safe"
        yield told(what, outcome, said(words), then)

    for what, fault, good, then in (
        ("the folder is deleted", disks.delete, whole, "all steps taken; the folder is made again"),
        (
            "a file is put in its place",
            disks.replace_by_file,
            said("Not a directory"),
            "all steps taken; the status says what could not be saved",
        ),
    ):
        folder = room / what.replace(" ", "-")
        outcome = disks.run_with(folder, cache, STEPS, fault(folder / "checkpoints"))
        yield told(what, outcome, good, then)


def damaged(given: Namespace) -> bool:
    found = damaged_checkpoints(DAMAGES[-1:] if given.quick else DAMAGES)
    outcomes = ("the one before used", "read all the same", "wrong")
    rows = [[kind, *(counts[outcome] for outcome in outcomes)] for kind, counts in found.items()]
    record.table("reliability-damage", ("files", *outcomes), rows, given.record, libraries=LIBRARIES)
    return not any(counts["wrong"] for counts in found.values())


SUITES = {
    "NaN, infinities, overflow, curvature, step sizes, stalls: status, variable, step and remedy": [
        "tests/loop/diagnose/test_numerical_faults.py",
        "tests/loop/recovery/test_halving.py",
    ],
    "checkpoint folders: another run, another writer, no space, bad input": [
        "tests/loop/checkpoints/test_folders.py"
    ],
    "odd values in place of every argument of every public function": ["tests/fuzz/test_fuzz_api.py"],
    "odd command lines": ["tests/fuzz/test_fuzz_cli.py"],
    "`bilevel reproduce` and `compare`: disks, folders, signals, manifests": [
        "tests/lab/paper/test_reproduce_faults.py",
        "tests/lab/compare/test_compare_faults.py",
        "tests/cli/test_folder.py",
        "tests/cli/test_stopping.py",
        "tests/test_atomic_files.py",
    ],
    "data: forged, truncated, huge, dripping downloads, hostile names": [
        "tests/package/test_security.py",
        "tests/data/test_data_download.py",
        "tests/data/test_data_counties.py",
        "tests/data/test_data_locate.py",
    ],
    "threads and forks": ["tests/test_forks_and_threads.py"],
}


def odd_calls() -> int:
    """How many calls with one odd value the table of public functions makes."""
    code = """
from fuzz.run import attempts
from fuzz.table import CALLS
print(sum(1 for call in CALLS for _ in attempts(call)))
"""
    paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def suites(given: Namespace) -> bool:
    """The test suites that inject faults, and how many of their cases pass."""
    rows, fine = [], True
    for what, files in SUITES.items():
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-n",
                str(given.at_once),
                f"--maxprocesses={given.at_once}",
                "-p",
                "no:cacheprovider",
                *files,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        count = {
            word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", done.stdout)
        }
        fine &= done.returncode == 0
        rows.append(
            [
                what,
                count.get("passed", 0),
                sum(map(count.get, ("failed", "error", "errors"), (0, 0, 0))),
                count.get("skipped", 0),
            ]
        )
    print(f"{odd_calls():,} calls with odd values, a case being one function")
    record.table("suites", ("what", "cases passed", "failed", "skipped here"), rows)
    return fine


SECTIONS: dict[str, Callable[[Namespace], bool]] = {
    "kills": killed,
    "disks": signaled_and_full,
    "damage": damaged,
    "suites": suites,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    record.options(parser)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=2, help="processes at a time")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=["kills", "disks", "damage"])
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, with its children
    survived = True
    for name in given.only:
        began = time.perf_counter()
        fine = SECTIONS[name](given)
        print(
            f"{name}: {'as' if fine else 'NOT AS'} promised, {time.perf_counter() - began:.0f} s", flush=True
        )
        survived &= fine
    return 0 if survived else 1


if __name__ == "__main__":
    if status := main():
        sys.exit(status)
