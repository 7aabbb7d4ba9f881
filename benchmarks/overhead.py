"""What `bl.scan` and `bl.run` cost over a hand-written `lax.scan` of the same algorithm.

    python benchmarks/overhead.py hand [--rounds 20]          # on a CPU
    python benchmarks/overhead.py scan --steps 1000           # on an accelerator

Every variant is timed in every round, one after the other, and a ratio is the median over rounds of
(variant / hand-written) in the same round, so that a machine that slows down slows both. Two problems: the
two-dimensional quadratic (10,000 iterations, where nothing but overhead can show) and MNIST-sized reweighting
(2,000 × 784 training rows, 500 validation rows, MLP 784-256-10, one weight per training row). An accelerator takes
minutes over a million tiny kernels: there `scan` compares `bl.run` with `bl.scan` on the second problem alone.
"""

import argparse
import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import record
from jax import lax

import bilevel as bl
from bilevel.problems.reweighting import PROBLEM, initial_mlp


def quadratic():
    q = bl.problems.quadratic(kappa=2.0)
    x0 = jnp.ones(2)
    return q.f, q.g, x0, q.inner_solution(x0), None, 1 / q.L, 0.01


def noisy_digits():
    rng = np.random.default_rng(0)
    rows = lambda n: bl.data.Examples(
        rng.normal(size=(n, 784)).astype(np.float32), rng.integers(0, 10, n, np.int32)
    )
    data = jax.tree.map(jnp.asarray, bl.Batch(inner=rows(2000), outer=rows(500)))
    y0 = jax.tree.map(jnp.asarray, initial_mlp(784, 256, 10, seed=0))
    return PROBLEM.outer, PROBLEM.inner, jnp.zeros(2000, jnp.float32), y0, data, 5e-2, 1e-3


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def by_hand(f, g, alpha, beta, steps, x, y, data):
    """Algorithm 1 as one would write it without a library, keeping f and the hypergradient's norm."""
    rows_g, rows_f = ((), ()) if data is None else ((data.inner,), (data.outer,))
    minus = lambda a, c, b: jax.tree.map(lambda p, q: p - c * q, a, b)

    def body(carry, _):
        x, y, v = carry
        y = minus(y, alpha, jax.grad(g, 1)(x, y, *rows_g))
        value, (f_x, f_y) = jax.value_and_grad(f, (0, 1))(x, y, *rows_f)
        _, products = jax.linearize(lambda y: jax.grad(g, (0, 1))(x, y, *rows_g), y)
        v = jax.tree.map(lambda v, h, b: v - alpha * (h - b), v, products(v)[1], f_y)
        h = minus(f_x, 1.0, products(v)[0])
        return (minus(x, beta, h), y, v), (value, jnp.sqrt(jnp.sum(h * h)))

    return lax.scan(body, (x, y, jax.tree.map(jnp.zeros_like, y)), length=steps)


def seconds(call) -> float:
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def ratio(times: list[float], base: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, base, strict=True))


def against_hand(setup, steps: int, rounds: int) -> list[str]:
    """By hand in milliseconds; the others, and a first call with compilation, relative to it."""
    f, g, x0, y0, data, alpha, beta = setup()
    solver = bl.aid(bl.Problem(outer=f, inner=g), inner=alpha, adjoint=alpha, outer=beta)
    state = solver.init(x0, y0, data)
    scanned = jax.jit(lambda state, data: bl.scan(solver, state, data, steps=steps))
    variants = {
        "by hand": lambda: by_hand(f, g, alpha, beta, steps, x0, y0, data),
        "again": lambda: by_hand(f, g, alpha, beta, steps, x0, y0, data),
        "bl.scan": lambda: scanned(state, data),
        "bl.run": lambda: bl.run(solver, x0, y0, data=data, steps=steps).state,
    }
    first = {variant: seconds(call) for variant, call in variants.items()}
    times = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant, call in variants.items():
            times[variant].append(seconds(call))
    relative = [ratio(times[variant], times["by hand"]) for variant in ("bl.scan", "bl.run", "again")]
    return [
        f"{1e3 * statistics.median(times['by hand']):.3g} ms",
        *(f"{each:.2f}" for each in (*relative, first["bl.run"] / first["by hand"])),
    ]


def tasks(rounds: int, steps: int, quick: bool):
    yield "quadratic, 10,000 iterations", *against_hand(quadratic, 10_000, rounds)
    if not quick:
        yield "quadratic, 1,000,000 iterations", *against_hand(quadratic, 1_000_000, rounds)
        yield f"reweighting, {steps:,} iterations", *against_hand(noisy_digits, steps, rounds)


def against_scan(steps: int, rounds: int, quick: bool):
    """`bl.run` relative to `bl.scan`, for three solvers on the reweighting task; and the fixed part of a run."""
    f, g, x0, y0, data, alpha, beta = noisy_digits()
    problem = bl.Problem(inner=g, outer=f)
    solvers = (
        bl.aid(problem, inner=alpha, adjoint=alpha, outer=beta),
        bl.itd(problem, inner=alpha, outer=beta),
        bl.soba(problem, inner=alpha, adjoint=alpha, outer=beta),
    )
    for solver in solvers[:1] if quick else solvers:
        state = solver.init(x0, y0, data)
        scanned = jax.jit(lambda state, data, s=solver: bl.scan(s, state, data, steps=steps))
        scan = lambda call=scanned, state=state: call(state, data)
        run = lambda s=solver: bl.run(s, x0, y0, data=data, steps=steps).state
        for call in (scan, run):
            seconds(call)  # compiles
        times = [(seconds(run), seconds(scan)) for _ in range(rounds)]
        each = 1e3 * statistics.median(scan for _, scan in times) / steps
        yield solver.name, f"{each:.2f}", f"{ratio(*map(list, zip(*times, strict=True))):.2f}"
    q = bl.problems.quadratic(kappa=2.0)
    one = lambda: (
        bl.run(
            bl.aid(q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=0.01), jnp.ones(2), jnp.zeros(2), steps=1
        ).state
    )
    seconds(one)
    alone = 1e3 * statistics.median(seconds(one) for _ in range(rounds))
    yield "one step on the quadratic, in all", f"{alone:.2f}", ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("what", nargs="?", choices=("hand", "scan", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20, help="of reweighting")
    given = parser.parse_args()
    rounds, steps = (1, 1) if given.quick else (given.rounds, given.steps)
    if given.what != "scan":
        columns = ("task", "by hand", "`bl.scan`", "`bl.run`", "by hand, again", "first call of `bl.run`")
        record.table("overhead", columns, tasks(rounds, steps, given.quick), given.record)
    if given.what != "hand":
        columns = ("solver", "ms a step of `bl.scan`", "`bl.run`, relative")
        record.table("overhead-scan", columns, against_scan(steps, rounds, given.quick), given.record)


if __name__ == "__main__":
    main()
