"""This library beside others and beside code without a library: time, memory, first call.

    python benchmarks/peers.py [--out docs/assets --page docs/about/benchmarks.md]
                               [--tasks itd aid] [--only bilevel higher]

Needs the extra `bench` (docs/about/benchmarks.md says how); what is not installed is said and passed over. Every
contestant runs each task in a process of its own, restricted to the same cores. Before anything is timed its x and y
after the task's steps are compared with those of a reference in NumPy and float64 (benchmarks/race/reference.py);
whoever is not within the task's tolerance is printed as wrong and not timed. Where a task is solved to a tolerance,
every contestant gets the loosest power of ten with which it is right. Then come rounds: one run of every contestant in
each. A time is that of a run, from the start to x and y as NumPy arrays, divided by the number of its steps. Peak
memory is the most that the process ever held, compilation included, less what it held after imports and with the
data loaded.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from contestants import CONTESTANTS
from race import page, tasks
from race.rounds import Race


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [contestant.name for contestant in CONTESTANTS]
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", choices=tasks.FULL, default=list(tasks.FULL))
    parser.add_argument("--only", nargs="+", choices=names, help="these contestants alone")
    parser.add_argument(
        "--quick", action="store_true", help="tiny tasks: is everything right, and does it run?"
    )
    parser.add_argument("--out", type=Path, help="the folder for peers.json, peers.csv and peers.svg")
    parser.add_argument("--page", type=Path, help="the page whose section is filled")
    options = parser.parse_args(arguments)
    asked = tuple(c for c in CONTESTANTS if options.only is None or c.name in options.only)
    rows = []
    with tempfile.TemporaryDirectory() as room:
        for name in options.tasks:
            size = "QUICK" if options.quick else "FULL"
            rows += Race(name, size, options.threads, Path(room)).run(options.rounds, asked)
    about = page.machine(options.threads)
    text = page.section(rows, about, options.rounds)
    print(text)
    if options.out is not None:
        page.save(options.out, rows, about)
    if options.page is not None:
        page.fill(options.page, text)
    return 1 if any(row.verdict == "wrong" or row.verdict.startswith("failed") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
