"""What `offload="outer"` saves on the device, and what it costs: a run with Adam's memory there, and one without.

    python benchmarks/offload.py [--examples 50_000_000] [--width 1024] [--steps 20]

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
    solver = bl.soba(bl.Problem(inner=inner, outer=outer), 1e-3, 1e-3, optax.adam(1e-2))
    start = jnp.zeros(examples, jnp.float32), draw(7, 8, width, width) / width**0.5
    return solver, start, bl.Batch(inner=batch(0), outer=batch(10))


def peak() -> int:
    stats = jax.devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(arguments: argparse.Namespace) -> None:
    solver, start, data = setting(arguments.examples, arguments.width)
    option = None if arguments.only == "device" else "outer"
    run = lambda steps, **more: bl.run(
        solver, *start, data=data, steps=steps, offload=option, replay="off", **more
    )
    run(2, every=1)  # compiles
    begun = time.perf_counter()
    jax.block_until_ready(run(arguments.steps).run)
    each = 1e3 * (time.perf_counter() - begun) / arguments.steps
    print(
        f"memory on the {arguments.only:7}{each:10.2f} ms a step{peak() / 2**30:10.3f} GiB at most",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=50_000_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", choices=("device", "host"), help="this variant alone, in this process")
    arguments = parser.parse_args()
    if arguments.only is not None:
        measure(arguments)
        return
    size = 4 * arguments.examples / 2**30
    print(
        f"x: {size:.3f} GiB, with Adam's memory {3 * size:.3f} GiB; y: {32 * arguments.width**2 / 2**30:.3f} GiB"
    )
    for variant in ("device", "host"):
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--only", variant], check=True)


if __name__ == "__main__":
    main()
