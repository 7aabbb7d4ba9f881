"""`bilevel compare` as a table: where every method ends on three tasks, with one budget of oracle calls each.

    python benchmarks/compare.py

The first two tasks are judged by the exact ‖∇Φ(x)‖, the third by the validation loss of a network trained afresh.
"""

import argparse
import sys

import jax
import numpy as np
import record

from bilevel.lab.compare import METHODS, TASKS, Method, Task, measure


def end(method: Method, task: Task) -> str:
    if method.small_x and task.large_x:
        return "for a small x"
    with jax.enable_x64(task.x64):
        value = measure(method, task).points[-1].value
    print(task.name, method.name, value, file=sys.stderr, flush=True)
    return "diverges" if not np.isfinite(value) else f"{value:.0e}" if value < 0.01 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    given = parser.parse_args()
    with jax.enable_x64(True):  # for the tasks that are made in double precision
        tasks = [make(given.quick) for make in TASKS.values()]
    if given.quick:
        rows = [[METHODS[0].name, end(METHODS[0], tasks[0]), "", ""]]
    else:
        rows = ([method.name, *(end(method, task) for task in tasks)] for method in METHODS)
    columns = ("method", "(a) ‖∇Φ‖", "(b) ‖∇Φ‖", "(c) validation loss")
    record.table("compare", columns, rows, given.record)


if __name__ == "__main__":
    main()
