"""A torch module through `bl.torch.front`, beside other libraries on PyTorch and beside hand-written PyTorch.

    python benchmarks/peers_torch.py [--rounds 7] [--tasks itd aid soba]

The tasks, the libraries and the check of every result are those of peers.py. Here each library has one core and one
thread, and a time is the processor time of its process, which other processes on the machine hardly change. The first
run is wall clock: it has the export and the compilation. Libraries that are not installed are reported.
"""

import argparse
import tempfile
from pathlib import Path

import record
from contestants import CONTESTANTS
from race import page
from race.rounds import Race, Row

BASELINE = "PyTorch by hand"
ASKED = ("bilevel, torch front", "Betty", "TorchOpt", "higher", "BOAT", "torch.compile", BASELINE)
TASKS = ("itd", "aid", "soba")
HEAD = ("task", "library", "how", "ms per step", f"relative to {BASELINE}", "first run, s", "error")


def cells(row: Row, baseline: float) -> list[str]:
    if not row.seconds:
        return [row.task.upper(), row.name, row.how, row.verdict, "", "", ""]
    median = row.quartiles[1]
    ratio = f"{median / baseline:.2f}"
    return [
        row.task.upper(),
        row.name,
        row.how,
        f"{1e3 * median:.1f}",
        ratio,
        f"{row.first:.1f}",
        f"{row.error:.0e}",
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tasks", nargs="+", choices=TASKS)
    options = parser.parse_args(arguments)
    names = ASKED if not options.quick else (ASKED[0], BASELINE)
    asked = tuple(contestant for contestant in CONTESTANTS if contestant.name in names)
    size, rounds = ("QUICK", 1) if options.quick else ("FULL", options.rounds)
    rows = []
    with tempfile.TemporaryDirectory() as room:
        for name in options.tasks or (["soba"] if options.quick else TASKS):
            found = Race(name, size, 1, Path(room), "process_time").run(rounds, asked)
            (baseline,) = (row for row in found if row.name == BASELINE)
            found.sort(key=lambda row: row.quartiles[1] if row.seconds else float("inf"))
            rows += [cells(row, baseline.quartiles[1]) for row in found]
    packages = {package for contestant in asked for package in contestant.packages}
    record.table(
        "peers-torch", HEAD, rows, options.record, libraries=[p for p in page.versions() if p in packages]
    )


if __name__ == "__main__":
    main()
