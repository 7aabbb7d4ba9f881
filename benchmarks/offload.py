"""What `offload="outer"` saves on the device, and what it costs: a run with Adam's memory there, and one without.

    python benchmarks/offload.py [--millions 50 400] [--width 1024] [--steps 100]

One weight for each of many training examples, of which a step sees a few thousand, Adam on x (two more arrays of x's
shape), and a network as y. Every variant runs in a process of its own, so that peaks do not mix; on a CPU, which has
one memory, the peak is that of the process.
"""

import argparse
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import optax
import record
from jax import lax

import bilevel as bl


def setting(examples: int, width: int, rows: int = 4096):
    layer = lambda h, w: (jnp.tanh(h @ w), None)

    def losses(y, data):
        return jnp.sum((lax.scan(layer, data["a"], y)[0] - data["b"]) ** 2, 1)

    def inner(x, y, data):
        return jnp.mean(jax.nn.sigmoid(x[data["row"]]) * losses(y, data)) + 1e-4 * jnp.sum(y * y)

    def outer(x, y, data):
        return jnp.mean(losses(y, data))

    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape, jnp.float32)
    batch = lambda seed: {
        "a": draw(seed, rows, width),
        "b": draw(seed + 1, rows, width),
        "row": jax.random.randint(jax.random.key(seed + 2), (rows,), 0, examples),
    }
    solver = bl.soba(bl.Problem(inner=inner, outer=outer), inner=1e-3, adjoint=1e-3, outer=optax.adam(1e-2))
    start = jnp.zeros(examples, jnp.float32), draw(7, 8, width, width) / width**0.5
    return solver, start, bl.Batch(inner=batch(0), outer=batch(10))


def peak() -> int:
    stats = jax.devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(examples: int, width: int, steps: int, where: str) -> str:
    solver, start, data = setting(examples, width)
    option = None if where == "device" else "outer"
    run = lambda steps, every=None: bl.run(
        solver,
        *start,
        data=data,
        steps=steps,
        options=bl.RunOptions(every=every, offload=option, snapshots="off"),
    )
    run(2, every=1)  # compiles
    begun = time.perf_counter()
    jax.block_until_ready(run(steps).run)
    each = 1e3 * (time.perf_counter() - begun) / steps
    return f"{peak() / 2**30:.2f} GiB, {each:.3g} ms a step"


def alone(*arguments: object) -> str:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--one", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--millions", type=int, nargs="+", default=[50, 400], help="of examples")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)  # what this process is for
    given = parser.parse_args()
    if given.one is not None:
        *numbers, where = given.one
        print(measure(*map(int, numbers), where))
        return
    million, width, steps = (10, 8, 1) if given.quick else (10**6, given.width, given.steps)
    one = measure if given.quick else alone
    rows = (
        [
            f"{count} million",
            f"{4 * count * million / 2**30:.2f} GiB",
            f"{8 * count * million / 2**30:.2f} GiB",
            *(one(count * million, width, steps, where) for where in ("device", "host")),
        ]
        for count in given.millions[: 1 if given.quick else None]
    )
    columns = ("examples", "x", "Adam's memory", "kept on the device", "kept on the host")
    record.table("offload", columns, rows, given.record)


if __name__ == "__main__":
    main()
