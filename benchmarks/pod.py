"""A plan for many devices: bytes that a step moves, counted and by formula, and how far a step would scale.

    python benchmarks/pod.py [--figure docs/assets/pod.svg] [--steps AID=0.151,SOBA=0.105,ITD=0.081]

Three parts, and what each is:

1. Counted: the collectives of the compiled step of AID, SOBA and ITD on eight forced host devices, for a net of equal
   layers under `lax.scan` with one weight per example; data parallel, and with y split too (FSDP).
2. Measured: one device's time for a step, which is given as an argument (from `benchmarks/transformer.py` on an
   accelerator).
3. Modeled: the time of a step on n devices. Compute is the measured step over n (strong scaling) or the same on each
   (weak); a collective of B bytes takes `hops · latency + B · share / bandwidth` in a ring. At one end of
   a range the devices compute while they talk, at the other they never do. y is split within groups of `--group`
   devices. The links of a pod are assumptions: `--latency` and `--bandwidth`.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any, NamedTuple

if __name__ == "__main__":  # before JAX makes its devices
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import record
from collectives import Collective, collectives
from jax import lax
from jax.sharding import Mesh

import bilevel as bl
from bilevel.loop.policies import Alone
from bilevel.loop.single_run import Request, Start, begun, plan_of

LAYERS, WIDTH, ROWS = 4, 64, 256
SOLVERS: dict[str, Callable[[bl.Problem], bl.Solver]] = {
    "AID": lambda problem: bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1),
    "SOBA": lambda problem: bl.soba(problem, inner=0.1, adjoint=0.1, outer=0.1),
    "ITD": lambda problem: bl.itd(problem, inner=0.1, outer=0.1),
}
LAYOUTS: dict[str, Callable[[Mesh], Any]] = {
    "data parallel": bl.sharded,
    "y split too": lambda mesh: bl.sharded(mesh, y="data"),
}


class Moved(NamedTuple):
    """What a step moves, in units of y's bytes: sums over the devices of something like y, and gathers of it."""

    reduced: float
    gathered: float
    messages: tuple[float, float] = (0, 0)  # a layer's: sums, and gathers


# Each derivative with respect to y is summed over the devices once: ∇_y g, ∇²_yy g v and ∇_y f; of ITD the first and
# the last. With y split, every pass through the layers gathers each of the trees it reads once: y twice for a gradient
# (forwards and backwards), y and a direction twice each for a Hessian product, once each for a cross product, which
# needs no way back. SOBA takes all of its products in one pass at one point, and ITD's way forwards is there already.
# The derivative of a layer's gradient hᵀδ is ḣᵀδ + hᵀδ̇, and the compiler sums each term over the devices before it adds
# them: of a Hessian product one more tree is counted than the formula has.
FORMULAS = {
    ("AID", "data parallel"): Moved(3, 0),
    ("SOBA", "data parallel"): Moved(3, 0),
    ("ITD", "data parallel"): Moved(2, 0),
    ("AID", "y split too"): Moved(3, 2 + 4 + 2 + 2),
    ("SOBA", "y split too"): Moved(3, 4 + 2),
    ("ITD", "y split too"): Moved(2, 2 + 2 + 1),
}


def task() -> tuple[bl.Problem, Any, Any, bl.Batch]:
    """A net of equal layers, and one weight for every example."""
    draw = lambda seed, *shape: np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    def net(y, rows):
        layer = lambda h, w: (h + jnp.tanh(h @ w["in"]) @ w["out"], None)
        return lax.scan(layer, rows, y)[0]

    def inner(x, y, batch):
        return jnp.mean(jax.nn.sigmoid(x) * jnp.sum(net(y, batch) ** 2, axis=1))

    def outer(x, y, batch):
        return jnp.mean(net(y, batch) ** 2)

    y0 = {"in": 0.1 * draw(0, LAYERS, WIDTH, 4 * WIDTH), "out": 0.1 * draw(1, LAYERS, 4 * WIDTH, WIDTH)}
    data = bl.Batch(inner=draw(2, ROWS, WIDTH), outer=draw(3, ROWS, WIDTH))
    return bl.Problem(inner=inner, outer=outer), np.zeros(ROWS, np.float32), y0, data


def compiled_step(solver: bl.Solver, x0: Any, y0: Any, data: Any, mesh: Any) -> str:
    """The text of the compiled step that `bl.run` would take in its loop."""
    request = Request(solver, data, None, (), bl.RunOptions(mesh=mesh), Alone())
    plan, progress = begun(plan_of(request, 1, None), Start(x0, y0, None, 0, 0))
    method = progress.method
    lowered = method.program._step.lower(method.leaves, progress.run, plan.source.stream)
    return lowered.compile().as_text()


def counted(method: str, layout: str, mesh: Mesh) -> tuple[Moved, list[Collective]]:
    """By the compiler, in units of y's bytes."""
    problem, x0, y0, data = task()
    found = collectives(compiled_step(SOLVERS[method](problem), x0, y0, data, LAYOUTS[layout](mesh)))
    unit = sum(leaf.nbytes for leaf in y0.values())
    large = lambda kind: [each for each in found if each.kind == kind and each.size > unit / 1000]
    total = lambda kind: sum(each.times * each.size for each in large(kind)) / unit
    messages = lambda kind: sum(each.times for each in large(kind)) / LAYERS
    kinds = "all-reduce", "all-gather"
    return Moved(*map(total, kinds), tuple(map(messages, kinds))), found


class Link(NamedTuple):
    """Between neighbors in a ring of devices."""

    latency: float  # seconds
    bandwidth: float  # bytes a second

    def reduce(self, size: float, devices: int, messages: float = 1) -> float:
        hops = 2 * (devices - 1)
        return messages * hops * self.latency + hops / devices * size / self.bandwidth

    def gather(self, size: float, devices: int, messages: float = 1) -> float:
        hops = devices - 1
        return messages * hops * self.latency + hops / devices * size / self.bandwidth


class Plan(NamedTuple):
    """What the model knows of a pod and of the net on it."""

    link: Link
    group: int  # devices that y is split over
    layers: int
    y_bytes: float

    def step(self, moved: Moved, compute: float, n: int) -> tuple[float, float]:
        """Seconds of a step on n devices: if they compute while they talk, and if they never do."""
        if n == 1:
            return compute, compute
        within = min(n, self.group) if moved.gathered else 1
        sums, gathers = (self.layers * each for each in moved.messages)
        # Within a group layer by layer: gathers, and sums of which each device keeps its part; then over the groups.
        talk = self.link.gather((moved.gathered + moved.reduced) * self.y_bytes, within, sums + gathers)
        talk += self.link.reduce(moved.reduced * self.y_bytes / within, n // within, sums)
        return max(compute, talk), compute + talk

    def weak(self, moved: Moved, compute: float, counts: list[int]) -> np.ndarray:
        """With as many examples on each device: the share of one device's speed that each keeps."""
        return np.array([[compute / took for took in self.step(moved, compute, n)] for n in counts])

    def strong(self, moved: Moved, compute: float, counts: list[int]) -> np.ndarray:
        """With as many examples in all: the speed-up."""
        return np.array([[compute / took for took in self.step(moved, compute / n, n)] for n in counts])


def figure(path: str, moved: dict, plan: Plan, steps: dict[str, float], counts: list[int]) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "pod"
    panels, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    colors = dict(zip(SOLVERS, ("#0072B2", "#D55E00", "#009E73"), strict=True))
    for (method, layout), each in moved.items():
        style = "-" if layout == "data parallel" else "--"
        for axis, scaling in zip(axes, (plan.weak, plan.strong), strict=True):
            _, apart = scaling(each, steps[method], counts).T  # if devices never compute while they talk
            axis.plot(counts, apart, style, color=colors[method], label=f"{method}, {layout}")
    axes[1].plot(counts, counts, ":", color="gray", label="ideal")
    axes[0].set(title="Weak scaling (modeled)", ylabel="share of one device's speed", ylim=(0, 1.05))
    axes[1].set(title="Strong scaling (modeled)", ylabel="speed-up", yscale="log", ylim=(0.1, 30))
    for axis in axes:
        axis.set(xscale="log", xlabel="devices")
        axis.set_xticks(counts, [str(n) for n in counts])
        axis.xaxis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7, loc="lower left")
    panels.savefig(path, metadata={"Date": None} if path.endswith("svg") else None)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    add = parser.add_argument
    add("--figure", help="where to draw the predicted scaling")
    add("--steps", default="AID=0.151,SOBA=0.105,ITD=0.081", help="seconds of a step on one device")
    add("--parameters", type=float, default=91.6e6, help="of the model, in float32")
    add("--layers", type=int, default=12, help="of the model")
    add("--group", type=int, default=8, help="devices that y is split over")
    add("--latency", type=float, default=10e-6, help="of a pod's links, in seconds: an assumption")
    add("--bandwidth", type=float, default=50e9, help="of a pod's links, in bytes a second: an assumption")
    return parser.parse_args()


def main() -> None:
    given, mesh = arguments(), Mesh(np.array(jax.devices()), ("data",))
    cases = list(FORMULAS)[: 1 if given.quick else None]
    found = {case: counted(*case, mesh) for case in cases}
    columns = (
        "trees like y that a step moves",
        "summed: formula",
        "counted",
        "gathered: formula",
        "counted",
        "largest",
    )
    rows = ([", ".join(case), *cells(FORMULAS[case], *found[case])] for case in cases)
    record.table("pod-bytes", columns, rows, given.record, repeatable=True)

    moved, counts = {case: here for case, (here, _) in found.items()}, [1, 8, 64, 256, 1024]
    steps = {name: float(value) for name, value in (each.split("=") for each in given.steps.split(","))}
    plan = Plan(Link(given.latency, given.bandwidth), given.group, given.layers, 4 * given.parameters)
    for kind, scaling, digits in (("weak", plan.weak, 2), ("strong", plan.strong, 1)):
        columns = (f"{kind} scaling, by devices", *(f"{n:,}" for n in counts[1:]))
        rows = (
            [
                ", ".join(case),
                *(
                    f"{worst:.{digits}f}–{best:.{digits}f}"
                    for best, worst in scaling(moved[case], steps[case[0]], counts)[1:]
                ),
            ]
            for case in cases
        )
        record.table(f"pod-{kind}", columns, rows, given.record, repeatable=True)
    if given.figure:
        figure(given.figure, moved, plan, steps, counts)


def cells(formula: Moved, here: Moved, found: list[Collective]) -> list[str]:
    unit = sum(leaf.nbytes for leaf in task()[2].values())
    gathers = [each.size for each in found if each.kind == "all-gather"]
    largest = f"1/{unit / max(gathers):.0f} of y" if gathers else "none"
    numbers = formula.reduced, f"{here.reduced:.2f}", formula.gathered, f"{here.gathered:.2f}"
    return [*map(str, numbers), largest]


if __name__ == "__main__":
    main()
