"""This library beside others and beside code without a library: time, memory, first call.

    python benchmarks/peers.py [--out docs/assets --record docs/measured] [--tasks itd aid] [--only bilevel higher]

Needs the extra `bench` (docs/about/benchmarks.md says how); what is not installed is said and passed over. Every
contestant runs each task in a process of its own, restricted to the same cores. Before anything is timed its x and y
after the task's steps are compared with those of a reference in NumPy and float64 (benchmarks/race/reference.py);
whoever is not within the task's tolerance is printed as wrong and not timed. Where a task is solved to a tolerance,
every contestant gets the loosest power of ten with which it is right. Then come rounds: one run of every contestant in
each. A time is that of a run, from the start to x and y as NumPy arrays, divided by the number of its steps. Peak
memory is the most that the process ever held, compilation included, less what it held after imports and with the
data loaded. With `--quick` the tasks are tiny, and without `--only` one way by hand stands for all.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import record
from contestants import CONTESTANTS
from race import page, tasks
from race.rounds import Race


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [contestant.name for contestant in CONTESTANTS]
    record.options(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", choices=tasks.FULL, default=list(tasks.FULL))
    parser.add_argument("--only", nargs="+", choices=names, help="these contestants alone")
    parser.add_argument("--out", type=Path, help="the folder for peers.csv and peers.svg")
    options = parser.parse_args(arguments)
    size, rounds = ("QUICK", 1) if options.quick else ("FULL", options.rounds)
    only = options.only or (["JAX by hand"] if options.quick else names)
    asked, rows = tuple(c for c in CONTESTANTS if c.name in only), []
    with tempfile.TemporaryDirectory() as room:
        for name in options.tasks:
            found = Race(name, size, options.threads, Path(room)).run(rounds, asked)
            print(page.TITLES[name], flush=True)
            record.table(
                f"peers-{name}", page.HEAD, page.lines(found), options.record, libraries=page.versions()
            )
            rows += found
    if options.out is not None:
        page.save(options.out, rows)
    return 1 if any(row.verdict == "wrong" or row.verdict.startswith("failed") for row in rows) else 0


if __name__ == "__main__":
    if status := main():
        sys.exit(status)
