"""What a step costs on a transformer: through `bl.run`, and written by hand in JAX.

    python benchmarks/transformer.py [--tiny] [--forms scanned checkpointed unrolled] [--seconds 420]

12 layers × 768, 12 heads, a vocabulary of 8,192: 91.6 million float32 parameters, computed with in bfloat16; 16 × 512
tokens at each level; x holds the weights of eight domains. Every case has a process of its own: milliseconds a step
(median), the device's peak memory, and the share of the rate that the same process reaches on one large matrix product.
`bl.run` is timed once its iterates have been found to be those of the step written by hand. On a CPU (`--tiny`) the
compiler says how much memory a step takes; with `--compiled` that is all, at full size, and nothing is run.

The operations of a step are those that the method cannot do without (`steps_by_hand.FORWARDS`), nothing computed twice
counted twice; a forward pass takes 2 for each weight and token, and in each layer 4·width for each pair of tokens.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import record
from language_model import DOMAINS, TINY, Form, Size, initial, objectives, text
from steps_by_hand import ALPHA, BETA, ETA, FORWARDS, STEPS

import bilevel as bl

COMPARED, CHUNK, CHUNKS = 3, 4, 6  # steps before iterates are compared; steps timed as one, and how often
GIB, TERA = 2**30, 1e12
FORMS = {"scanned": Form(), "checkpointed": Form(remat=True), "unrolled": Form(scan=False)}
LAYERS = {  # how the tables name them
    "scanned": "under `lax.scan`",
    "checkpointed": "each under `jax.checkpoint` too",
    "unrolled": "one by one",
}
WAYS = {"by hand": "by hand", "bl.run": "`bl.run`"}
COLUMNS = {"ITD": "ITD", "SOBA": "SOBA", "AID": "AID", "plain": "a gradient step on g"}
Rows = dict[tuple[str, str], dict[str, str]]  # by form of the layers and way, by method
SOLVERS = {
    "ITD": lambda problem: bl.itd(problem, inner=ALPHA, outer=BETA),
    "SOBA": lambda problem: bl.soba(problem, inner=ALPHA, adjoint=ETA, outer=BETA),
    "AID": lambda problem: bl.aid(problem, inner=ALPHA, adjoint=ETA, outer=BETA),
}


# One case


@cache
def start(size: Size, form: Form) -> tuple:
    """x, y and the data of every step, on the host: what is on the device is the run's own."""
    return np.zeros(DOMAINS, np.float32), initial(size, form), text(size)


class ByHand:
    """The step compiled with its buffers donated, called from Python."""

    def __init__(self, method: str, size: Size, form: Form):
        self.at = partial(start, size, form)
        self.step = jax.jit(partial(STEPS[method], *objectives(size, form)), donate_argnums=(0, 1, 2))
        self.has_v = method in ("SOBA", "AID")

    def start(self) -> tuple:
        x, y, data = jax.tree.map(jnp.array, self.at())
        return x, y, jax.tree.map(jnp.zeros_like, y) if self.has_v else (), data

    def after(self, steps: int) -> tuple:
        x, y, v, data = self.start()
        for _ in range(steps):
            x, y, v = self.step(x, y, v, data)
        return x, y, v

    def seconds(self) -> list[float]:
        x, y, v, data = self.start()
        took = []
        for _ in range(CHUNKS):
            began = time.perf_counter()
            for _ in range(CHUNK):
                x, y, v = self.step(x, y, v, data)
            jax.block_until_ready((x, y, v))
            took.append((time.perf_counter() - began) / CHUNK)
        return took

    def compiled(self):
        return self.step.lower(*self.start()).compile()


class Clock(bl.hooks.Hook):
    """Read the time and nothing else."""

    reads_info = False

    def __init__(self):
        self.seen: list[float] = []

    def __call__(self, event: bl.hooks.Event) -> None:
        self.seen.append(time.perf_counter())


class ByLibrary:
    """`bl.run`, with buffers donated and nothing kept to go back to."""

    def __init__(self, method: str, size: Size, form: Form):
        self.at = partial(start, size, form)
        f, g = objectives(size, form)
        self.solver = SOLVERS[method](bl.Problem(inner=g, outer=f))

    def run(self, steps: int, clock: Clock) -> bl.Result:
        x, y, data = self.at()
        return bl.run(
            self.solver,
            x,
            y,
            data=data,
            steps=steps,
            options=bl.RunOptions(every=CHUNK, snapshots="off"),
            hooks=[clock],
        )

    def after(self, steps: int) -> tuple:
        result = self.run(steps, Clock())
        return result.x, result.y, getattr(result.state, "v", ())

    def seconds(self) -> list[float]:
        clock = Clock()
        self.run((1 + CHUNKS) * CHUNK, clock)
        return [(b - a) / CHUNK for a, b in pairwise(clock.seen)]

    def compiled(self):
        x, y, data = self.at()
        state = jax.eval_shape(self.solver.init, x, y, data)

        def step(state, data):  # Info's trees are for hooks that read them
            after, info = self.solver.step(state, data)
            return after, info.outer_value, info.metrics

        return jax.jit(step, donate_argnums=0).lower(state, data).compile()


def sample(variable: object) -> np.ndarray:
    """Every so many of its entries, as far as about 100,000 of them go."""
    leaves = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(variable)]
    stride = 1 + sum(leaf.size for leaf in leaves) // 100_000
    return np.concatenate([np.zeros(0), *(leaf[::stride] for leaf in leaves)])


def apart(ours: dict, theirs: dict, began: dict, tolerance: float) -> float:
    """How far x, y and v are from those by hand, relative to how far these have come: the largest of the three."""
    distance = {
        name: float(
            np.linalg.norm(ours[name] - theirs[name]) / np.linalg.norm(theirs[name] - began.get(name, 0))
        )
        for name in theirs
        if theirs[name].size
    }
    if not max(distance.values()) <= tolerance:
        raise AssertionError(
            f"iterates are not those by hand: relative distances {distance}, above {tolerance}"
        )
    return max(distance.values())


def peak_memory(case: ByHand | ByLibrary) -> tuple[int, str]:
    """In bytes, and whose: of the process on its device, or of the compiled step where the device does not tell."""
    stats = jax.devices()[0].memory_stats()
    if stats is not None:
        return stats["peak_bytes_in_use"], "peak in use"
    return of_compiler(case), "compiled step"


def of_compiler(case: ByHand | ByLibrary) -> int:
    """Bytes that the compiled step holds: arguments, results and temporaries, those that share memory once."""
    m = case.compiled().memory_analysis()
    held = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes
    return held + m.temp_size_in_bytes


def compiled_only(given: argparse.Namespace) -> Rows:
    """GiB by form of the layers and way, by method."""
    size = TINY if given.tiny else Size()
    found: Rows = {}
    for method, way, form in cases(given.methods, given.forms):
        case = (ByHand if way == "by hand" else ByLibrary)(method, size, FORMS[form])
        found.setdefault((form, way), {})[method] = f"{of_compiler(case) / GIB:.3g}"
        print(form, way, method, found[form, way][method], file=sys.stderr, flush=True)
    return found


def matmul_rate() -> float:
    """Operations a second on a large product in bfloat16 (a small float32 one on a CPU): the best of five rounds."""
    n, dtype = (512, jnp.float32) if jax.default_backend() == "cpu" else (8192, jnp.bfloat16)
    a = jnp.ones((n, n), dtype)
    many = jax.jit(lambda a: jax.lax.fori_loop(0, 20, lambda _, b: (a @ b) * jnp.asarray(1 / n, dtype), a))
    many(a).block_until_ready()
    took = []
    for _ in range(5):
        began = time.perf_counter()
        many(a).block_until_ready()
        took.append(time.perf_counter() - began)
    return 20 * 2 * n**3 / min(took)


def measured(method: str, way: str, size: Size, form: Form, reference: Path) -> dict:
    case = (ByHand if way == "by hand" else ByLibrary)(method, size, form)
    began = time.perf_counter()
    point = jax.block_until_ready(case.after(COMPARED))
    first, distance = time.perf_counter() - began, None
    ours = dict(zip("xyv", map(sample, point), strict=True))
    del point
    if way == "by hand":
        np.savez(reference, **ours)
    else:
        x, y, _ = start(size, form)
        exact = 1e-4 if jax.default_backend() == "cpu" else 1e-3  # a GPU rounds what it multiplies in float32
        tolerance = exact if size.dtype == jnp.float32 else 5e-2
        distance = apart(ours, dict(np.load(reference)), {"x": sample(x), "y": sample(y)}, tolerance)
    seconds = statistics.median(case.seconds())
    (peak, whose), rate = peak_memory(case), matmul_rate()
    operations = sum(a * b for a, b in zip(FORWARDS[method], size.forward, strict=True))
    return {
        "ms": 1e3 * seconds,
        "peak_gib": peak / GIB,
        "memory": whose,
        "tera_operations": operations / TERA,
        "matmul_tera_per_s": rate / TERA,
        "share": operations / seconds / rate,
        "first_s": first,
        "apart": distance,
        "parameters": size.parameters,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }


def one_case(method: str, way: str, form: str, tiny: bool, folder: Path) -> dict:
    """In a process of its own, which has read its libraries before it is told to begin."""
    size = TINY if tiny else Size()
    start(size, FORMS[form])
    if not sys.stdin.readline():  # whoever began this is gone
        sys.exit(1)
    try:
        return measured(method, way, size, FORMS[form], folder / f"{method}-{form}.npz")
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0][:300]}"}


# All of them


def cases(methods: list[str], forms: list[str]) -> list[tuple[str, str, str]]:
    ways = lambda method: ["by hand"] if method == "plain" else ["by hand", "bl.run"]
    return [(method, way, form) for form in forms for method in methods for way in ways(method)]


def begun(case: tuple[str, str, str], tiny: bool, folder: str) -> subprocess.Popen:
    command = [sys.executable, __file__, "--case", json.dumps([*case, tiny, folder])]
    # The peak in use is the same with JAX's own pool; without it two processes can be there at once.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def outcome(process: subprocess.Popen, seconds: float) -> dict:
    """What the case's process measured, or why it did not."""
    try:
        said, complained = process.communicate("begin\n", timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": "no time left: pass a larger --seconds"}
    try:
        return json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        last = (complained or said or "nothing was said").strip().splitlines()[-1]
        return {"error": f"ended with {process.returncode}: {last[:300]}"}


def cell(row: dict) -> str:
    """Milliseconds a step, GiB at the peak, share of the matmul rate."""
    return row.get("error") or f"{row['ms']:.1f} ms, {row['peak_gib']:.3g} GiB, {row['share']:.0%}"


def tabulated(name: str, found: Rows, folder: Path | None) -> None:
    rows = (
        [f"{LAYERS[form]}, {WAYS[way]}", *(by_method.get(method, "") for method in COLUMNS)]
        for (form, way), by_method in found.items()
    )
    record.table(name, ("layers, step", *COLUMNS.values()), rows, folder)


def all_cases(given: argparse.Namespace) -> list[dict]:
    """One after the other; while one runs, the next reads its libraries."""
    wanted, rows, ends = cases(given.methods, given.forms), [], time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        following = begun(wanted[0], given.tiny, folder)
        for i, (method, way, form) in enumerate(wanted):
            process = following
            following = begun(wanted[i + 1], given.tiny, folder) if i + 1 < len(wanted) else None
            found = outcome(process, ends - time.monotonic())
            rows.append({"form": form, "method": method, "way": way} | found)
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--tiny", action="store_true", help="a model of 40,000 parameters, for a CPU")
    parser.add_argument("--methods", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=["scanned", "checkpointed"])
    parser.add_argument("--seconds", type=float, default=420, help="after which no more is measured")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)  # that this process is for
    parser.add_argument("--compiled", action="store_true", help="the compiler's word on memory alone")
    given = parser.parse_args()
    if given.case is not None:
        *case, folder = given.case
        print(json.dumps(one_case(*case, Path(folder))))
        return
    if given.quick:
        given.tiny, given.methods, given.forms = True, ["plain"], ["checkpointed"]
    if given.compiled or given.quick:
        tabulated("transformer-compiled", compiled_only(given), given.record)
    if given.compiled:
        return
    rows, found = all_cases(given), {}
    for row in rows:
        found.setdefault((row["form"], row["way"]), {})[row["method"]] = cell(row)
    tabulated("transformer", found, given.record)
    if any("error" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
