"""What `diagnose=True` costs: the same run with and without it, compile time apart.

    python benchmarks/diagnose.py [--rounds 10]

Both are timed in every round, one after the other, and a ratio is the median over rounds of (with / without) in the
same round. Two problems: the two-dimensional quadratic, whose steps take hardly any time, so that only a look's
own overhead shows; and reweighting with an MLP, 1,000 × 64 training rows, where the products count. The calls are those
of `bilevel.counting`.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import record

import bilevel as bl
from bilevel.counting import oracle_calls
from bilevel.problems.reweighting import PROBLEM, initial_mlp


def quadratic():
    q = bl.problems.quadratic(kappa=10.0)
    x0 = jnp.ones(2)
    return (
        bl.aid(q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=1e-4),
        x0,
        q.inner_solution(x0),
        None,
        20_000,
    )


def reweighting():
    rng = np.random.default_rng(0)
    rows = lambda n: bl.data.Examples(
        rng.normal(size=(n, 64)).astype(np.float32), rng.integers(0, 10, n, np.int32)
    )
    data = jax.tree.map(jnp.asarray, bl.Batch(inner=rows(1000), outer=rows(250)))
    y0 = jax.tree.map(jnp.asarray, initial_mlp(64, 32, 10, seed=0))
    return bl.aid(PROBLEM, inner=5e-2, adjoint=5e-2, outer=1e-1), jnp.zeros(1000, jnp.float32), y0, data, 3000


def measured(make, rounds: int) -> list[str]:
    solver, x0, y0, data, steps = make()

    def once(diagnose: bool) -> tuple[float, bl.Result]:
        began = time.perf_counter()
        result = bl.run(solver, x0, y0, data=data, steps=steps, options=bl.RunOptions(diagnose=diagnose))
        return time.perf_counter() - began, result

    first = [once(flag)[0] for flag in (False, True)]  # compiles
    pairs = [(once(True), once(False)[0]) for _ in range(rounds)]
    ratio = statistics.median(seen / plain for (seen, _), plain in pairs)
    plain, result = statistics.median(plain for _, plain in pairs), pairs[-1][0][1]
    assert result.diagnosis is not None
    looks = result.diagnosis.looks["calls"]
    step = sum(oracle_calls(solver, bl.start(solver, x0, y0, data), data))
    share = (looks + step).sum() / (steps * step)
    compiled = first[0] - plain, first[1] - ratio * plain
    return [
        make.__name__,
        f"{steps:,} in {plain:.2g} s",
        str(len(looks)),
        f"{100 * share:.1f} %",
        f"{ratio:.2f}",
        f"{1e3 * (ratio - 1) * plain / len(looks):.2g}",
        f"{compiled[0]:.1f}; {compiled[1]:.1f} for the looks",
    ]


COLUMNS = (
    "problem",
    "steps without",
    "looks",
    "their share of the calls",
    "time with / without",
    "ms a look",
    "compiled, s",
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    rounds, makes = (1, [quadratic]) if given.quick else (given.rounds, [quadratic, reweighting])
    record.table("diagnose", COLUMNS, (measured(make, rounds) for make in makes), given.record)
