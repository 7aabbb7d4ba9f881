"""How time and memory grow: with rows, parameters, inner steps, problems under `vmap`, and devices.

    python benchmarks/growth.py [--figure docs/assets/growth.svg]

Time is the median of several steps, compiled before. Memory is the compiler's own account of one step: arguments,
results and everything in between (`memory_analysis`), which does not depend on the machine. The first three tables
are the reweighting task (MLP 784-hidden-10, one weight per training row, a quarter as many validation rows); the base
is 2,000 rows and 256 hidden units. Problems are quadratics in ten variables each, 200 steps of AID: all of them in
one program by `jax.vmap` of `bl.scan`, against one after the other, through one compiled scan and by `bl.run`.
Devices are forced host devices that share the cores there are, in a process each: with fewer cores than devices the
table shows what splitting costs, not what it gains.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import record

import bilevel as bl
from bilevel.problems.reweighting import PROBLEM, initial_mlp

ROWS, HIDDEN = 2000, 256
SOLVERS = {
    "ITD": lambda problem: bl.itd(problem, inner=5e-2, outer=1e-3),
    "SOBA": lambda problem: bl.soba(problem, inner=5e-2, adjoint=5e-2, outer=1e-3),
    "AID": lambda problem: bl.aid(problem, inner=5e-2, adjoint=5e-2, outer=1e-3),
}
INNER = {
    "ITD, all iterates kept": lambda problem, n: bl.itd(problem, inner=5e-2, outer=1e-3, inner_steps=n),
    "ITD, every √N-th kept": lambda problem, n: bl.itd(
        problem, inner=5e-2, outer=1e-3, inner_steps=n, checkpoint_every=max(1, round(n**0.5))
    ),
    "AID, and 5 steps of CG": lambda problem, n: bl.aid(
        problem, inner=5e-2, adjoint=bl.adjoints.cg(1e-6, 5), outer=1e-3, inner_steps=n
    ),
}


class Cost(NamedTuple):
    seconds: float
    bytes: int


Costs = dict[str, dict[int, Cost]]  # by line of the figure, by size


def reweighting(rows: int, hidden: int) -> tuple:
    rng = np.random.default_rng(0)
    some = lambda n: bl.data.Examples(
        rng.normal(size=(n, 784)).astype(np.float32), rng.integers(0, 10, n, np.int32)
    )
    data = jax.tree.map(jnp.asarray, bl.Batch(inner=some(rows), outer=some(rows // 4)))
    y0 = jax.tree.map(jnp.asarray, initial_mlp(784, hidden, 10, seed=0))
    return jnp.zeros(rows, jnp.float32), y0, data


def seconds(call: Callable[[], Any], least: float, most: int = 20) -> float:
    """The median of `most` calls, or of as many as fit into `least` seconds, but three."""
    jax.block_until_ready(call())
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < least and len(taken) < most):
        began = time.perf_counter()
        jax.block_until_ready(call())
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def cost(function: Callable, *arguments: Any, least: float = 0.5) -> Cost:
    compiled = jax.jit(function).lower(*arguments).compile()
    about = compiled.memory_analysis()
    size = about.argument_size_in_bytes + about.output_size_in_bytes + about.temp_size_in_bytes
    return Cost(seconds(lambda: compiled(*arguments), least), size)


def step_of(solver: bl.Solver, x0: Any, y0: Any, data: Any) -> Cost:
    return cost(solver.step, solver.init(x0, y0, data), data)


def by_rows(sizes: list[int]) -> Costs:
    return {
        name: {rows: step_of(make(PROBLEM), *reweighting(rows, HIDDEN)) for rows in sizes}
        for name, make in SOLVERS.items()
    }


def by_parameters(sizes: list[int]) -> Costs:
    count = lambda hidden: 784 * hidden + hidden + 10 * hidden + 10
    return {
        name: {count(hidden): step_of(make(PROBLEM), *reweighting(ROWS, hidden)) for hidden in sizes}
        for name, make in SOLVERS.items()
    }


def by_inner_steps(sizes: list[int]) -> Costs:
    task = reweighting(ROWS // 4, HIDDEN)
    return {name: {n: step_of(make(PROBLEM, n), *task) for n in sizes} for name, make in INNER.items()}


def by_problems(sizes: list[int]) -> Costs:
    """Of all problems together: at once, and one after the other by one compiled scan, and by `bl.run`."""
    quadratic = lambda x, y, batch: jnp.sum(0.5 * batch[0] * y * y - (x + batch[1]) * y)
    distance = lambda x, y, batch: 0.5 * jnp.sum((y - batch) ** 2) + 0.05 * jnp.sum(x * x)
    solver = bl.aid(bl.Problem(inner=quadratic, outer=distance), inner=0.3, adjoint=0.3, outer=0.1)
    zero = jnp.zeros(10)
    each = lambda a, b, c: bl.Batch(inner=(a, b), outer=c)

    def solve(a, b, c):
        return bl.scan(solver, solver.init(zero, zero, each(a, b, c)), each(a, b, c), steps=200)[0].x

    together, alone = jax.jit(jax.vmap(solve)), jax.jit(solve)
    costs: Costs = {name: {} for name in ("one program for all", "scans, one by one", "bl.run, one by one")}
    for count in sizes:
        rng = np.random.default_rng(0)
        a, b, c = (jnp.asarray(v, jnp.float32) for v in rng.uniform(1, 2, size=(3, count, 10)))
        apart = [(a[i], b[i], c[i]) for i in range(count)]
        scans = lambda apart=apart: [alone(*one) for one in apart]
        runs = lambda apart=apart: [bl.run(solver, zero, zero, data=each(*one), steps=200).x for one in apart]
        for xs in (scans(), runs()):
            np.testing.assert_allclose(jnp.stack(xs), together(a, b, c), rtol=1e-4, atol=1e-5)
        small = cost(solve, *apart[0], least=0.0).bytes
        costs["one program for all"][count] = cost(jax.vmap(solve), a, b, c)
        costs["scans, one by one"][count] = Cost(seconds(scans, 0.5), small)
        costs["bl.run, one by one"][count] = Cost(seconds(runs, 0.5), small)
    return costs


def by_devices(sizes: list[int]) -> dict[str, dict[int, float]]:
    """A process each; rows and their weights split over the devices, the network on all of them."""
    found = {}
    for count in sizes:
        ran = subprocess.run(
            [sys.executable, __file__, "--devices", str(count)], capture_output=True, text=True, check=True
        )
        found[count] = json.loads(ran.stdout.splitlines()[-1])
    return {name: {count: times[name] for count, times in found.items()} for name in SOLVERS}


def on_devices() -> dict[str, float]:
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    split, whole = (jax.NamedSharding(mesh, jax.sharding.PartitionSpec(*axis)) for axis in (("rows",), ()))
    x0, y0, data = reweighting(2048, HIDDEN)  # which can be split into eight, and so can 512
    x0, data, y0 = jax.device_put(x0, split), jax.device_put(data, split), jax.device_put(y0, whole)
    times = {}
    for name, make in SOLVERS.items():
        solver = make(PROBLEM)
        state = jax.jit(solver.init)(x0, y0, data)
        times[name] = cost(solver.step, state, data).seconds
    return times


def rows_of(costs: Costs):
    for size in next(iter(costs.values())):
        cells = (
            f"{_ms(one.seconds)} ms, {one.bytes / 2**20:.3g} MiB"
            for one in (line[size] for line in costs.values())
        )
        yield [f"{size:,}", *cells]


def inner_steps(sizes: list[int], folder: Path | None) -> Costs:
    costs = by_inner_steps(sizes)
    record.table("growth-inner", ("inner steps N", *costs), rows_of(costs), folder)
    return costs


def problems(sizes: list[int], folder: Path | None) -> Costs:
    costs = by_problems(sizes)
    first = costs["one program for all"]
    cell = lambda one, n: (
        f"{_ms(one.seconds)} ms" + ("" if one == first[n] else f", {one.seconds / first[n].seconds:.1f} ×")
    )
    rows = ([f"{n:,}", *(cell(line[n], n) for line in costs.values())] for n in sizes)
    record.table("growth-problems", ("problems", *costs), rows, folder)
    return costs


def _short(size: float) -> str:
    return f"{size / 1000:.3g}k" if size >= 10_000 else f"{size:,.0f}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds > 0.1 else f"{1e3 * seconds:.3g}"


def draw(panels: dict[str, Costs], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator, StrMethodFormatter

    from bilevel.lab.paper.plots.style import BLACK, BLUE, GREEN, VERMILION, house_style

    looks = [(BLUE, "o", "-"), (GREEN, "^", "--"), (VERMILION, "s", "-.")]
    with house_style():
        figure = Figure(figsize=(11.5, 6), layout="constrained")
        grid = figure.subplots(2, len(panels))
        for column, (what, costs) in enumerate(panels.items()):
            for (name, line), (color, marker, style) in zip(costs.items(), looks, strict=False):
                sizes = list(line)
                for axes, values in zip(
                    grid[:, column],
                    (
                        [1e3 * one.seconds for one in line.values()],
                        [one.bytes / 2**20 for one in line.values()],
                    ),
                    strict=True,
                ):
                    axes.plot(sizes, values, color=color, marker=marker, linestyle=style, label=name, ms=4)
            for axes in grid[:, column]:
                axes.set(xscale="log", yscale="log")
                low, high = axes.get_ylim()
                first = next(iter(next(iter(costs.values()))))
                start = min(line.get_ydata()[0] for line in axes.lines)
                last = list(next(iter(costs.values())))[-1]
                axes.plot([first, last], [start, start * last / first], color=BLACK, lw=0.7, ls=":", zorder=0)
                axes.set_ylim(low, high)
                axes.set_xlabel(what)
                sizes = list(next(iter(costs.values())))
                axes.xaxis.set_major_locator(FixedLocator(sizes))
                axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _short(size)))
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
                axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                for axis in (axes.xaxis, axes.yaxis):
                    axis.set_minor_locator(NullLocator())
            grid[0, column].legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        grid[0, 0].set_ylabel("milliseconds a step")
        grid[1, 0].set_ylabel("MiB of a step")
        grid[0, -1].set_ylabel("milliseconds for all, 200 steps")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--figure", type=Path, default=Path("docs/assets/growth.svg"))
    parser.add_argument("--devices", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.devices:
        jax.config.update("jax_num_cpu_devices", given.devices)
        print(json.dumps(on_devices()))
        return
    if given.quick:
        inner_steps([1], given.record)
        problems([1], given.record)
        return
    rows = by_rows([500, 1000, 2000, 4000, 8000])
    record.table("growth-rows", ("training rows", *rows), rows_of(rows))
    parameters = by_parameters([64, 128, 256, 512, 1024])
    record.table("growth-parameters", ("parameters", *parameters), rows_of(parameters))
    panels = {
        "training rows": rows,
        "parameters": parameters,
        "inner steps N": inner_steps([1, 4, 16, 64], given.record),
        "problems": problems([1, 10, 100, 1000], given.record),
    }
    devices = by_devices([1, 2, 4, 8])
    cells = ([count, *(f"{1e3 * line[count]:.3g} ms" for line in devices.values())] for count in (1, 2, 4, 8))
    record.table("growth-devices", ("forced host devices", *devices), cells)
    draw(panels, given.figure)
    print(f"Figure: {given.figure}")


if __name__ == "__main__":
    main()
