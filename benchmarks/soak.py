"""Does memory stay flat? Millions of steps in one run, and a thousand runs with fresh functions in one process.

    python benchmarks/soak.py                 # both, some minutes
    python benchmarks/soak.py steps --steps 10000000
    python benchmarks/soak.py runs --runs 200

The resident memory of the process at several points. A trace grows by some bytes a step, unless it is thinned; all
else should not grow at all.
"""

import argparse
import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import record

import bilevel as bl

X0, Y0 = np.ones(2, np.float32), np.zeros(2, np.float32)


@dataclass(frozen=True)
class Seen:
    """The process after so many steps or runs."""

    count: int
    megabytes: float  # resident
    arrays: int  # alive on the device
    seconds: float  # since the beginning


def resident() -> float:
    """Megabytes of this process that are in memory now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def seen(count: int, began: float) -> Seen:
    gc.collect()
    return Seen(count, resident(), len(jax.live_arrays()), time.perf_counter() - began)


def many_steps(
    steps: int = 10**6, thin: int | None = 1000, points: int = 5, every: int = 1000
) -> Iterator[Seen]:
    """One run of `steps` steps, looked at `points` times on the way; a warm-up run compiles first."""
    q = bl.problems.quadratic(kappa=4.0)
    solver = bl.aid(q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=0.1 / q.L)
    bl.run(
        solver,
        X0,
        Y0,
        steps=2 * every,
        options=bl.RunOptions(thin=thin, every=every),
    )
    began, looks = time.perf_counter(), []
    marks = {round(steps * (k + 1) / points / every) * every for k in range(points)}

    def look(event: bl.hooks.Event) -> None:
        if event.step in marks:
            looks.append(seen(event.step, began))

    yield seen(0, began)
    bl.run(solver, X0, Y0, steps=steps, options=bl.RunOptions(thin=thin, every=every), hooks=[look])
    yield from looks


def fresh_run(k: int, steps: int = 20) -> bl.Result:
    """A run of functions, a record, a probe and a loader that exist for it alone."""
    shift = jnp.float32(k)
    problem = bl.Problem(
        inner=lambda x, y: jnp.sum((y - x) ** 2) + 0 * shift,
        outer=lambda x, y: jnp.sum((y - shift) ** 2),
    )
    solver = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.01)
    return bl.run(
        *(solver, X0, Y0),
        steps=steps,
        record=lambda state, info: {"y": state.y},
        options=bl.RunOptions(probe=lambda state, info: {"x": float(state.x[0])}),
    )


def many_runs(runs: int = 1000, points: int = 10, steps: int = 20, before: int = 10) -> Iterator[Seen]:
    """So many runs with fresh functions, looked at `points` times; and some before, for what is made once."""
    began, block = time.perf_counter(), max(1, runs // points)
    for k in range(before):
        fresh_run(k, steps)
    yield seen(0, began)
    for k in range(runs):
        fresh_run(k, steps)
        if (k + 1) % block == 0:
            yield seen(k + 1, began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("what", nargs="?", choices=("steps", "runs", "both"), default="both")
    parser.add_argument("--steps", type=int, default=5 * 10**6)
    parser.add_argument("--runs", type=int, default=1000)
    given = parser.parse_args()
    soaks = {
        "steps": ("steps of one run", lambda: many_steps(given.steps)),
        "runs": ("runs with fresh functions", lambda: many_runs(given.runs, before=1 if given.quick else 10)),
    }
    for what, (title, soak) in soaks.items():
        if given.what in (what, "both"):
            points = islice(soak(), 1) if given.quick else soak()
            rows = ((f"{point.count:,}", f"{point.megabytes:.1f}") for point in points)
            record.table(f"soak-{what}", (title, "megabytes"), rows, given.record)


if __name__ == "__main__":
    main()
