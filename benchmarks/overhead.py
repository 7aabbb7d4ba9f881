"""What `bl.scan` and `bl.run` cost over a hand-written `lax.scan` of the same algorithm.

    python benchmarks/overhead.py [--rounds 20]

Every variant is timed in every round, one after the other, and a ratio is the median over rounds of
(variant / hand-written) in the same round, so that a machine that slows down slows both. Two problems: the
two-dimensional quadratic (10,000 iterations, where nothing but overhead can show) and MNIST-sized reweighting
(2,000 × 784 training rows, 500 validation rows, MLP 784-256-10, one weight per training row).
"""

import argparse
import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
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


def measure(name: str, setup, steps: int, rounds: int) -> None:
    f, g, x0, y0, data, alpha, beta = setup()
    solver = bl.aid(bl.Problem(outer=f, inner=g), alpha, alpha, beta)
    state = solver.init(x0, y0, data)
    scanned = jax.jit(lambda state, data: bl.scan(solver, state, data, steps=steps))
    variants = {
        "hand-written": lambda: by_hand(f, g, alpha, beta, steps, x0, y0, data),
        "hand-written, again": lambda: by_hand(f, g, alpha, beta, steps, x0, y0, data),
        "bl.scan": lambda: scanned(state, data),
        "bl.run": lambda: bl.run(solver, x0, y0, data=data, steps=steps).state,
    }
    first = {variant: seconds(call) for variant, call in variants.items()}  # with compilation
    times = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant, call in variants.items():
            times[variant].append(seconds(call))
    base = times["hand-written"]
    print(f"\n{name}: {steps:,} iterations, {rounds} rounds, {jax.default_backend()}")
    print(f"{'':22}{'median':>12}{'ratio':>9}{'first call':>13}")
    for variant, measured in times.items():
        ratio = statistics.median(a / b for a, b in zip(measured, base, strict=True))
        print(f"{variant:22}{1e3 * statistics.median(measured):9.3f} ms{ratio:9.3f}{first[variant]:11.2f} s")


def against_scan(steps: int, rounds: int) -> None:
    """`bl.run` relative to `bl.scan`, for three solvers on the reweighting task; and the fixed part of a run."""
    f, g, x0, y0, data, alpha, beta = noisy_digits()
    problem = bl.Problem(inner=g, outer=f)
    solvers = (
        bl.aid(problem, alpha, alpha, beta),
        bl.itd(problem, alpha, beta),
        bl.soba(problem, alpha, alpha, beta),
    )
    print(
        f"\nbl.run relative to bl.scan: {steps:,} reweighting steps, {rounds} rounds, {jax.default_backend()}"
    )
    for solver in solvers:
        state = solver.init(x0, y0, data)
        scanned = jax.jit(lambda state, data, s=solver: bl.scan(s, state, data, steps=steps))
        scan = lambda call=scanned, state=state: call(state, data)
        run = lambda s=solver: bl.run(s, x0, y0, data=data, steps=steps).state
        for call in (scan, run):
            seconds(call)  # compiles
        ratio = statistics.median(seconds(run) / seconds(scan) for _ in range(rounds))
        print(f"{solver.name:22}{ratio:9.3f}")
    q = bl.problems.quadratic(kappa=2.0)
    one = lambda: bl.run(bl.aid(q.problem, 1 / q.L, 1 / q.L, 0.01), jnp.ones(2), jnp.zeros(2), steps=1).state
    seconds(one)
    print(f"a run of one step: {1e3 * statistics.median(seconds(one) for _ in range(20)):.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--reweighting-steps", type=int, default=20)
    arguments = parser.parse_args()
    measure("quadratic", quadratic, 10_000, arguments.rounds)
    if jax.default_backend() == "cpu":  # an accelerator takes minutes over a million tiny kernels
        measure("quadratic", quadratic, 1_000_000, arguments.rounds)
    measure("reweighting", noisy_digits, arguments.reweighting_steps, arguments.rounds)
    against_scan(arguments.reweighting_steps, arguments.rounds)


if __name__ == "__main__":
    main()
