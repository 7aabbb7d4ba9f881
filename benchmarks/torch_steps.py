"""What a step of a torch module costs through `bl.torch.front`.

    python benchmarks/torch_steps.py [--size large] [--only mlp cnn gpt lstm] [--rounds 7] [--tf32]

Needs torch. Data reweighting (a weight for each row, full batch) of four networks, three times: as hand-written
torch (networks_torch.py and steps_by_hand_torch.py: eager, double backward, attention by the math kernel), as the same
network written in JAX (networks_jax.py) with bilevel's solver, and as the torch module through the front with the same
solver. Before anything is timed, x and y of all three after five steps are compared.

The size `small` is for a CPU: one core and one thread, and times are processor times, which other processes hardly
change. `large` is for a GPU: wall clock, products in float32 unless --tf32. It is the default if torch sees a GPU. A
time is the median of rounds in which each variant runs once. The first call of the front has the export (also alone, as
`export`), the tracing and the compilation.
"""

import argparse
import contextlib
import copy
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import networks_jax
import networks_torch
import numpy as np
import record
import steps_by_hand_torch as by_hand
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import bilevel as bl
import bilevel.torch

CHECKED = 5  # steps whose result is compared
SECONDS = 0.25  # of a timed run, about


# ---- the three variants: a function that takes so many further steps, and one that returns x and y -------------------


class InTorch:
    def __init__(self, task: networks_torch.Task, method: str, model: torch.nn.Module, data: Any):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        place = lambda part: tuple(each.to(device) for each in part)
        self.model = copy.deepcopy(model).to(device)
        self.x = torch.zeros(task.rows, device=device, requires_grad=True)
        placed = SimpleNamespace(inner=place(data.inner), outer=place(data.outer))
        self.step = by_hand.STEPS[method](self.model, self.x, placed)

    def run(self, steps: int) -> None:
        # neither cuDNN's kernel of an LSTM nor the fast ones of attention have a second derivative
        lstm = isinstance(self.model, networks_torch.LSTM)
        slow = torch.backends.cudnn.flags(enabled=False) if lstm else contextlib.nullcontext()
        with sdpa_kernel(SDPBackend.MATH), slow:
            for _ in range(steps):
                self.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def values(self) -> dict[str, np.ndarray]:
        named = dict(self.model.named_parameters()) | {"x": self.x}
        return {name: tensor.detach().cpu().numpy() for name, tensor in named.items()}


class InJax:
    """A run of `bl.run`, continued."""

    def __init__(
        self, task: networks_torch.Task, method: str, problem: bl.Problem, start: dict[str, Any], data: Any
    ):
        options = {"inner": by_hand.ALPHA, "adjoint": by_hand.ETA, "outer": by_hand.BETA}
        self.solver = {"AID": bl.aid, "SOBA": bl.soba}[method](problem, **options)
        self.x0, self.start = np.zeros(task.rows, np.float32), start
        self.data = bl.Batch(*(jax.tree.map(_on_device, level) for level in (data.inner, data.outer)))

    def run(self, steps: int) -> None:
        self.result = bl.run(self.solver, self.x0, **self.start, data=self.data, steps=steps).check()

    def values(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in {**self.result.y, "x": self.result.x}.items()}


def _on_device(tensor: torch.Tensor) -> jax.Array:
    return jax.device_put(tensor.numpy() if tensor.is_floating_point() else tensor.numpy().astype(np.int32))


@dataclass
class Row:
    name: str
    parameters: int
    difference: float
    export: float
    first: tuple[float, float, float]  # torch, JAX, front; seconds
    times: tuple[float, float, float]  # of a step

    @property
    def step(self) -> list[str]:
        theirs, written, ours = self.times
        ratios = f"{ours / written:.2f}", f"{theirs / ours:.1f}"
        times = [f"{1e3 * seconds:.2f}" for seconds in self.times]
        return [self.name, f"{self.parameters:,}", *times, *ratios, f"{self.difference:.0e}"]

    @property
    def call(self) -> list[str]:
        return [self.name, f"{self.export:.1f}", *(f"{seconds:.1f}" for seconds in self.first)]


def measure(
    task: networks_torch.Task, network: str, method: str, rounds: int, clock: Callable[[], float]
) -> Row:
    torch.manual_seed(0)
    model, data = task.build(), networks_torch.data_of(task)

    began = time.perf_counter()
    options = {"inner": networks_torch.inner, "outer": networks_torch.outer}
    front = bl.torch.front(model, **options, x=torch.zeros(task.rows), example=data)
    exported = time.perf_counter() - began

    start = front.start
    written = networks_jax.losses(
        networks_jax.networks(task.heads)[network], start["model_state"] is not None
    )
    problem = bl.Problem(inner=written[0], outer=written[1])
    variants = (
        InTorch(task, method, model, data),
        InJax(task, method, problem, start, data),
        InJax(task, method, front.problem, start, data),
    )
    first = [_seconds(time.perf_counter, variant, CHECKED) for variant in variants]
    first[2] += exported
    difference = _difference(variants, start)
    counts = [_count(variant) for variant in variants]
    times: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        for taken, variant, steps in zip(times, variants, counts, strict=True):
            taken.append(_seconds(clock, variant, steps) / steps)
    size = sum(p.numel() for p in model.parameters())
    medians = tuple(statistics.median(taken) for taken in times)
    return Row(f"{task.title}, {method}", size, difference, exported, tuple(first), medians)


def _seconds(clock: Callable[[], float], variant: Any, steps: int) -> float:
    began = clock()
    variant.run(steps)
    return clock() - began


def _count(variant: Any) -> int:
    """Return a number of steps that takes about SECONDS."""
    variant.run(1)
    return max(1, min(1000, round(SECONDS / max(1e-6, _seconds(time.perf_counter, variant, 3) / 3))))


def _difference(variants: tuple[Any, ...], start: dict[str, Any]) -> float:
    """Return the largest distance of the others from hand-written torch, relative to the distance moved."""
    theirs, *others = (variant.values() for variant in variants)
    first = {name: np.asarray(value) for name, value in start["y0"].items()} | {
        "x": np.zeros_like(theirs["x"])
    }
    flat = lambda values, names: np.concatenate([np.ravel(values[name]) for name in names])
    largest = 0.0
    for names in (["x"], sorted(start["y0"])):
        moved = np.linalg.norm(flat(theirs, names) - flat(first, names))
        away = [np.linalg.norm(flat(each, names) - flat(theirs, names)) for each in others]
        largest = max(largest, *(float(each / moved) for each in away))
    return largest


HEAD = (
    "network, method", "parameters", "torch, ms", "JAX, ms", "front, ms", "front / JAX", "torch / front", "difference",
)  # fmt: skip
FIRST = ("network, method", "export, s", "first call: torch, s", "JAX, s", "front, s")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(networks_torch.tasks("tiny"))
    record.options(parser)
    parser.add_argument("--size", choices=("small", "large"))
    parser.add_argument("--only", nargs="+", choices=names)
    parser.add_argument("--methods", nargs="+", choices=list(by_hand.STEPS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tf32", action="store_true", help="on a GPU, products in TF32, in torch and in JAX")
    options = parser.parse_args(arguments)
    size = options.size or ("large" if torch.cuda.is_available() else "small")
    only = options.only or (["mlp"] if options.quick else names)
    methods = options.methods or (["AID"] if options.quick else list(by_hand.STEPS))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs a part of the GPU's memory
    if size == "small":  # before JAX counts the cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        torch.set_num_threads(1)
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if options.tf32 else "highest")
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32
    clock = time.process_time if size == "small" else time.perf_counter
    found = networks_torch.tasks("tiny" if options.quick else size)
    rounds = 1 if options.quick else options.rounds
    rows = [measure(found[name], name, method, rounds, clock) for name in only for method in methods]
    for each in ("small", "large") if options.quick else (size,):
        table = partial(record.table, folder=options.record, libraries=("torch",))
        table(f"torch-front-{each}", HEAD, [row.step for row in rows])
        table(f"torch-front-{each}-first", FIRST, [row.call for row in rows])


if __name__ == "__main__":
    main()
