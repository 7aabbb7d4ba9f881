"""Faults injected, survived, lost: runs them all and writes docs/about/reliability.md.

    python benchmarks/reliability.py [--kills 50] [--at-once 2] [--only kills disks] [--out docs/about/reliability.md]

Needs the extra `test`. Leaves with status 1 if anything was not survived that should have been.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from faults import disks, kills
from faults.damage import damaged_checkpoints
from faults.process import Worker

import bilevel as bl

ROOT = Path(__file__).parents[1]
STEPS = 1000
ENDLESS = 10**6


@dataclass(frozen=True)
class Section:
    """A piece of the page, and whether all went well in it."""

    text: str
    fine: bool


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def killed(count: int, at_once: int) -> Section:
    seed = time.time_ns() % 10**6
    runs = kills.kill_runs(count, at_once=at_once, seed=seed)
    same, died, starts = (
        sum(run.same for run in runs),
        sum(run.kills for run in runs),
        sum(run.starts for run in runs),
    )
    text = f"""## Killed at random moments

A run of {kills.STEPS:,} steps (examples reweighted, minibatches, Adam at two levels, a warm-up, `Best`, `CSV`,
a probe) saves itself every {kills.SAVE_EVERY} steps, gets SIGKILL at random moments, four in five while it works
and one in five while it begins, and is started again with the same call until it ends. Compared with a run that
nobody disturbs: every bit of the state, the trace, the probes, the best state, and the CSV file.

{table(["kills", "starts", "runs", "ended bit for bit the same"], [[died, starts, len(runs), same]])}
"""
    return Section(text, same == len(runs) and died >= count * 0.8)


def signalled_and_full(*_: int) -> Section:
    """Each scenario: what was done, with which exit status the program left, what became of the run."""
    rows, fine = [], True
    with tempfile.TemporaryDirectory() as name:
        room, cache = Path(name), Path(name) / "cache"
        expected = kills.undisturbed(room / "plain", cache, STEPS)

        def tell(what: str, outcome: tuple, good: Callable[..., bool], then: str) -> None:
            nonlocal fine
            ok = good(*outcome)
            fine &= ok
            rows.append([what, outcome[0], then if ok else "**NOT AS PROMISED**"])

        def goes_on(folder: Path) -> bool:
            status, out, _ = Worker(folder, STEPS, cache).ended()
            return status == 0 and f" {expected} " in out

        whole = lambda status, steps, digest, said, errors: (status, steps, digest) == (0, STEPS, expected)
        told = lambda words: (
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
            tell(what, outcome, left, "saved; the same call goes on, bit for bit")

        for number, (what, fault, words) in enumerate(
            (
                ("the disk fills up", disks.fill, "No space left on device"),
                ("the disk becomes read-only", disks.read_only, "Read-only file system"),
            )
        ):
            with disks.small_disk(room / f"disk{number}", "400k") as disk:
                if disk is None:
                    rows.append([what, "–", "not tried: mounting is not allowed here"])
                    continue
                folder = room / f"on-disk{number}"
                folder.mkdir()
                (folder / "checkpoints").symlink_to(disk)
                outcome = disks.run_with(folder, cache, STEPS, fault(disk))
            tell(
                what,
                outcome,
                told(words),
                f"all steps taken; the status says {words!r} and which step is safe",
            )

        for what, fault, good, then in (
            ("the folder is deleted", disks.delete, whole, "all steps taken; the folder is made again"),
            (
                "a file is put in its place",
                disks.replace_by_file,
                told("Not a directory"),
                "all steps taken; the status says what could not be saved",
            ),
        ):
            folder = room / what.replace(" ", "-")
            outcome = disks.run_with(folder, cache, STEPS, fault(folder / "checkpoints"))
            tell(what, outcome, good, then)
    text = f"""## Signals and disks

The same run in a process of its own, with real signals and small file systems of its own.

{table(["what happens to it", "exit status", "what becomes of the run"], rows)}
"""
    return Section(text, fine)


def damaged(*_: int) -> Section:
    found = damaged_checkpoints()
    outcomes = ["the one before used", "read all the same", "wrong"]
    rows = [[kind, *(counts[outcome] for outcome in outcomes)] for kind, counts in found.items()]
    text = f"""## Damaged checkpoints

Each file of the newest of three checkpoints in turn. "Read all the same" would be a file that nobody needs.

{table(["files", *outcomes], rows)}
"""
    return Section(text, not any(counts["wrong"] for counts in found.values()))


SUITES = {
    "NaN, infinities, overflow, curvature, step sizes, stalls: status, variable, step and remedy": [
        "tests/core/test_numerical_faults.py",
        "tests/core/test_halving.py",
    ],
    "checkpoint folders: another run, another writer, no space, bad input": [
        "tests/checkpoints/test_folders.py"
    ],
    "odd values in place of every argument of every public function": ["tests/fuzz/test_fuzz_api.py"],
    "odd command lines": ["tests/fuzz/test_fuzz_cli.py"],
    "`bilevel reproduce` and `compare`: disks, folders, signals, manifests": [
        "tests/lab/paper/test_reproduce_faults.py",
        "tests/lab/test_compare_faults.py",
        "tests/core/test_folder.py",
        "tests/core/test_stopping.py",
        "tests/core/test_writing.py",
    ],
    "data: forged, truncated, huge, dripping downloads, hostile names": [
        "tests/core/test_security.py",
        "tests/data/test_data_download.py",
        "tests/data/test_data_counties.py",
        "tests/data/test_data_locate.py",
    ],
    "threads and forks": ["tests/core/test_processes_and_threads.py"],
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


def suites(_: int, at_once: int) -> Section:
    """The test suites that inject faults, and how many of their cases pass."""
    rows, fine = [], True
    for what, files in SUITES.items():
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-n",
                str(at_once),
                f"--maxprocesses={at_once}",
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
    text = f"""## Everything else that is thrown at it

By test suites, which `pytest` runs too. The odd values are {odd_calls():,} calls in all, a case being one
function: each call must be refused in a sentence that names the value and the fix, or give a sound result.

{table(["what", "cases passed", "failed", "skipped here"], rows)}
"""
    return Section(text, fine)


SECTIONS: dict[str, Callable[[int, int], Section]] = {
    "kills": killed,
    "disks": signalled_and_full,
    "damage": damaged,
    "suites": suites,
}

LOST = """## What is lost

* After SIGKILL or a crash, the steps since the newest checkpoint are taken again; nothing else is lost. Without
  `checkpoint=`, everything is.
* If no checkpoint could be written, the result exists only in the memory of the program, which goes on to its end.
* Checksums tell accidents, not malice: whoever may write into the folder can forge a checkpoint, or a manifest of
  `bilevel reproduce`.
* Bits depend on the machine: another kind of processor, another number of devices or another version of JAX may round
  differently. The run goes on, but no longer bit for bit.
* Memory is another matter: [a million steps and a thousand runs](benchmarks.md) in one process.
* Locks are those of the operating system. On a network file system without them, two machines can write into one
  folder.
"""


def page(sections: list[Section]) -> str:
    command = " ".join(["python benchmarks/reliability.py", *sys.argv[1:]])
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "orbax-checkpoint", "numpy"))
    head = f"""# Reliability

Faults that are injected, what is survived and what is lost. Written by `{command}` on
{date.today()}: bilevel {bl.__version__}, {versions}, Python {platform.python_version()}, {os.cpu_count()} cores.
How to use it: [runs that survive](checkpoints.md).
"""
    return "\n".join([head, *(section.text for section in sections), LOST])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=2, help="processes at a time")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument(
        "--out", type=Path, help="docs/about/reliability.md, unless only some parts are asked for"
    )
    options = parser.parse_args()
    sections = []
    for name in options.only:
        began = time.perf_counter()
        sections.append(SECTIONS[name](options.kills, options.at_once))
        fine = "as promised" if sections[-1].fine else "NOT AS PROMISED"
        print(f"{name}: {fine}, {time.perf_counter() - began:.0f} s", flush=True)
    text = page(sections)
    out = options.out or (
        ROOT / "docs" / "about" / "reliability.md" if options.only == list(SECTIONS) else None
    )
    print(text) if out is None else out.write_text(text)
    return 0 if all(section.fine for section in sections) else 1


if __name__ == "__main__":
    sys.exit(main())
