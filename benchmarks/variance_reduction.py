"""Sub-optimality of stochastic methods against oracle calls and against time, and beside benchmark_bilevel's solvers.

    python benchmarks/variance_reduction.py [--task quadratics] [--seconds 8] [--against PATH]

Three problems: the quadratics of benchmark_bilevel (4,096 inner and 1,024 outer samples with matrices of their own),
ridge-logistic regression with one log-ridge per feature, and data cleaning with one weight per image: 3,072 images of
MNIST in 7 × 7 pixels, half of them with a wrong label, and 896 clean ones. Batches of 64.

Step sizes: on the quadratics and on the regression those of SABA, SRBA, stocBiO and AmIGO are the ones in
benchmark_bilevel's config/quadratics_021424_best_params.yml and config/ijcnn1_021424_best_params.yml, found there for
32,768 inner samples and for the data set ijcnn1, which the data here only resemble. SOBA's, and all of them for
cleaning, are ours. SRBA passes over all data every half epoch, as in those two files.

The measure is ‖∇Φ(x)‖², from an inner problem solved by Newton's method in double precision; the clock stands still
for it. PATH is a checkout of github.com/benchopt/benchmark_bilevel (with `pip install benchopt`): its SABA, SRBA and
SOBA then take turns with ours on the same functions of the same arrays, each turn some steps. A ratio of step times is
the median over turns of theirs to ours.
"""

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import record

import bilevel as bl

SIZE = 64


@dataclass
class Task:
    problem: bl.Problem
    data: bl.Batch
    x0: jax.Array
    y0: jax.Array
    steps: dict[str, tuple[float, float]]  # by method: inner step size, outer step size
    chunk: int  # steps a turn
    level: float  # of ‖∇Φ‖² in that of the start, which the time to is told
    reduced: bl.Batch | None = None  # fewer data with the same means, to measure with

    @property
    def counts(self) -> tuple[int, int]:
        rows = lambda part: len(jax.tree.leaves(part)[0])
        return rows(self.data.inner), rows(self.data.outer)

    @property
    def period(self) -> int:
        """Of SRBA, in steps: half an epoch."""
        return sum(self.counts) // (2 * SIZE)


def quadratics(some: Callable[[int], int]) -> Task:
    """Samples ½yᵀAy + ½xᵀBx + xᵀCy + aᵀy + bᵀx with random matrices of rank one, as benchmark_bilevel's are."""
    rng, n_y, n_x, mu = np.random.default_rng(0), 100, 10, 0.1

    def samples(count):
        def gram(spectrum):
            basis = np.linalg.qr(rng.normal(size=(spectrum.size,) * 2))[0]
            rows = rng.normal(size=(count, spectrum.size)) @ (basis * np.sqrt(spectrum)) @ basis.T
            return rows[:, :, None] * rows[:, None, :]

        left, right = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (n_x, n_y))
        noise = rng.normal(size=(count, n_y))
        cross = (0.1 * noise[:, :n_x] @ left.T)[:, :, None] * (noise @ right.T)[:, None, :]
        A, B = gram(np.geomspace(mu, 1, n_y)), gram(np.r_[0, np.geomspace(mu, 1, n_x - 1)])
        parts = A, B, cross, rng.normal(size=(count, n_y)), rng.normal(size=(count, n_x))
        return tuple(jnp.asarray(part, jnp.float32) for part in parts)

    def sample(x, y, A, B, C, a, b):
        return 0.5 * y @ (A @ y) + 0.5 * x @ (B @ x) + x @ C @ y + a @ y + b @ x

    mean = lambda x, y, batch: jnp.mean(jax.vmap(partial(sample, x, y))(*batch))
    problem, data = bl.Problem(inner=mean, outer=mean), bl.Batch(samples(some(4096)), samples(some(1024)))
    sizes = {
        "SABA": (0.1, 0.1),
        "SRBA": (0.1, 0.1),
        "SOBA": (0.1, 0.1),
        "stocBiO": (0.1, 0.1),
        "AmIGO": (0.01, 0.1),
    }
    reduced = jax.tree.map(lambda a: np.mean(a, axis=0, dtype=float, keepdims=True), data)
    return Task(problem, data, -2 * jnp.ones(n_x), jnp.zeros(n_y), sizes, 32, 1e-12, reduced)


def ridge_logistic(some: Callable[[int], int]) -> Task:
    """22 features like ijcnn1, one log-ridge for each."""
    rng, n = np.random.default_rng(1), 22
    truth = rng.normal(size=n) * (rng.random(n) < 0.5)

    def rows(count):
        a = rng.normal(size=(count, n)) * np.geomspace(1, 0.2, n)
        return jnp.asarray(a, jnp.float32), jnp.asarray(
            np.sign(a @ truth + rng.logistic(size=count)), jnp.float32
        )

    fit = lambda y, batch: jnp.mean(jax.nn.softplus(-batch[1] * (batch[0] @ y)))
    inner = lambda x, y, batch: fit(y, batch) + 0.5 * jnp.sum(jnp.exp(x) * y * y)
    problem = bl.Problem(inner=inner, outer=lambda x, y, batch: fit(y, batch))
    x0 = jnp.log(jnp.asarray(rng.random(n), jnp.float32))
    sizes = {
        "SABA": (0.25, 0.25),
        "SRBA": (0.5, 0.5),
        "SOBA": (0.25, 0.25),
        "stocBiO": (0.25, 0.25),
        "AmIGO": (0.125, 1.25),
    }
    return Task(
        problem, bl.Batch(rows(some(12_480)), rows(some(22_912))), x0, jnp.zeros(n), sizes, 2048, 1e-2
    )


def cleaning(some: Callable[[int], int]) -> Task:
    """Softmax regression on digits, half of the training labels wrong; x weighs the examples."""
    train, valid = bl.data.mnist().train.split(some(3072), some(896), seed=2)
    noisy, _ = bl.data.corrupt_labels(train.targets, 0.5, classes=10, seed=2)

    def rows(images, labels):
        small = images.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(-1, 49)
        return jnp.asarray(small, jnp.float32), jnp.asarray(np.eye(10)[labels], jnp.float32)

    def losses(y, batch):
        return -jnp.sum(batch[1] * jax.nn.log_softmax(batch[0] @ y.reshape(49, 10)), axis=1)

    def inner(x, y, batch, *, rows):
        return jnp.mean(jax.nn.sigmoid(x[rows]) * losses(y, batch)) + 0.2 * jnp.sum(y * y)

    problem = bl.Problem(inner=inner, outer=lambda x, y, batch: jnp.mean(losses(y, batch)))
    sizes = dict.fromkeys(("SABA", "SRBA", "SOBA"), (1.0, 1e4)) | dict.fromkeys(
        ("stocBiO", "AmIGO"), (0.5, 1e4)
    )
    data = bl.Batch(rows(train.inputs, noisy), rows(valid.inputs, valid.targets))
    return Task(problem, data, -2 * jnp.ones(some(3072)), jnp.zeros(490), sizes, 256, 1e-4)


TASKS = {task.__name__: task for task in (quadratics, ridge_logistic, cleaning)}


def measure(task: Task) -> Callable[[jax.Array], float]:
    """x ↦ ‖∇Φ(x)‖² in double precision."""
    oracles, state = task.problem.oracles, {"y": np.asarray(task.y0, float)}

    @jax.jit
    def newton(x, y, data):
        at = oracles.linearize(x, y, data)
        return jnp.linalg.norm(at.gradient), y - jax.scipy.sparse.linalg.cg(
            at.hessian, at.gradient, tol=1e-13
        )[0]

    @jax.jit
    def squared(x, y, data):
        at, f = oracles.linearize(x, y, data), oracles.outer_gradients(x, y, data)
        h = f.x - at.cross(jax.scipy.sparse.linalg.cg(at.hessian, f.y, tol=1e-13)[0])
        return h @ h

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), float), task.reduced or task.data)
        data = bl.Batch(wide.inner, wide.outer, bl.Levels(*(jnp.arange(count) for count in task.counts)))

    def at(x: jax.Array) -> float:
        with jax.enable_x64(True):
            x, y, left = jnp.asarray(np.asarray(x), float), jnp.asarray(state["y"]), np.inf
            size, ahead = newton(x, y, data)
            while size < 0.5 * left:  # until rounding
                left, y = size, ahead
                size, ahead = newton(x, y, data)
            state["y"] = np.asarray(y)
            return float(squared(x, y, data))

    return at


@dataclass
class Method:
    """A solver of ours, and how many derivatives of examples a step of it evaluates."""

    make: Callable[[Task, float, float], bl.Solver]
    calls: Callable[[Task], float]


decreasing = lambda size: optax.sgd(lambda k: size / jnp.sqrt(k + 1.0))
METHODS = {
    "SABA": Method(lambda t, a, b: bl.saba(t.problem, inner=a, adjoint=a, outer=b), lambda t: 5 * SIZE),
    "SRBA": Method(
        lambda t, a, b: bl.solvers.srba(t.problem, inner=a, adjoint=a, outer=b, period=t.period),
        lambda t: (10 * SIZE * (t.period - 1) + 3 * t.counts[0] + 2 * t.counts[1]) / t.period,
    ),
    "SOBA": Method(
        lambda t, a, b: bl.soba(t.problem, inner=decreasing(a), adjoint=decreasing(a), outer=decreasing(b)),
        lambda t: 5 * SIZE,
    ),
    "stocBiO": Method(
        lambda t, a, b: bl.stocbio(t.problem, inner=a, adjoint=a, outer=b, products=10, inner_steps=10),
        lambda t: 23 * SIZE,
    ),
    "AmIGO": Method(
        lambda t, a, b: bl.aid(t.problem, inner=a, adjoint=bl.adjoints.steps(a, 10), outer=b, inner_steps=10),
        lambda t: 23 * SIZE,
    ),
}


class Ours:
    def __init__(self, name: str, task: Task):
        self.solver = METHODS[name].make(task, *task.steps[name])
        self.stream = bl.blocks(task.data, SIZE, seed=1)
        nothing = lambda state, info: {}
        advance = lambda run, stream: bl.scan(self.solver, run, stream, steps=task.chunk, record=nothing)[0]
        self.advance = jax.jit(advance, donate_argnums=0)
        self.begin = jax.jit(lambda stream: bl.start(self.solver, task.x0, task.y0, stream))
        self.restart()

    def restart(self) -> None:
        self.run = None

    def turn(self) -> jax.Array:
        if self.run is None:  # a pass over the data for SABA: part of the time
            self.run = self.begin(self.stream)
        self.run = self.advance(self.run, self.stream)
        return jax.block_until_ready(self.run.x)


class Theirs:
    """A solver of benchmark_bilevel on the same functions, with its own samplers."""

    def __init__(self, name: str, task: Task):
        made = importlib.import_module(f"solvers.{name.lower()}").Solver
        made.run_once = lambda *_, **__: None
        a, b = task.steps[name]
        options = dict(step_size=a, outer_ratio=a / b, batch_size=SIZE, random_state=1)
        if name == "SRBA":
            options["period_frac"] = 0.5
        self.solver = made.get_instance(**options)
        self.solver.set_objective(
            self._sliced(task.problem.g, task.data.inner, "inner"),
            self._sliced(task.problem.f, task.data.outer, "outer"),
            *task.counts,
            task.y0,
            task.x0,
        )
        self.name, self.chunk = name, task.chunk
        self.restart()

    @staticmethod
    def _sliced(objective: Any, arrays: Any, level: str) -> Callable:
        @partial(jax.jit, static_argnames="batch_size")
        def function(y, x, start=0, batch_size=1):
            part = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, batch_size), arrays)
            rows = bl.Levels(**{level: start + jnp.arange(batch_size)})
            return objective(x, y, bl.Batch(**{level: part}, rows=rows))

        return function

    def restart(self) -> None:
        self.taken = 0
        self.carry = jax.tree.map(jnp.array, self.solver.init())

    def turn(self) -> jax.Array:
        if self.name == "SABA":
            memory, carry = self.carry
            self.carry = self.solver.one_epoch(carry, memory, self.chunk)
            carry = self.carry[1]
        else:
            count = (self.taken,) if self.name == "SRBA" else ()
            self.carry = carry = self.solver.one_epoch(self.carry, self.chunk, *count)
        self.taken += self.chunk
        return jax.block_until_ready(carry["outer_var"])


def timed(turn: Callable[[], jax.Array]) -> tuple[float, jax.Array]:
    began = time.perf_counter()
    x = turn()
    return time.perf_counter() - began, x


def compare(task: Task, names: list[str], limit: float, with_theirs: bool) -> list[list[str]]:
    error = measure(task)
    runs: dict[str, Any] = {name: Ours(name, task) for name in names}
    pairs = [name for name in ("SABA", "SRBA", "SOBA") if with_theirs and name in names]
    runs |= {f"{name} (theirs)": Theirs(name, task) for name in pairs}
    for run in runs.values():
        run.turn()  # compiles
        run.restart()
    begun = error(task.x0)
    clock, seen = dict.fromkeys(runs, 0.0), {name: [] for name in runs}
    turns = {name: [] for name in runs}
    while min(clock.values()) < limit:
        for name, run in runs.items():
            if clock[name] >= limit:
                continue
            took, x = timed(run.turn)
            clock[name] += took
            turns[name].append(took)
            if len(turns[name]) in CHECKED:
                seen[name].append((len(turns[name]) * task.chunk, clock[name], error(x) / begun))

    def row(name: str) -> list[str]:
        method, *theirs = name.split()
        reached = next((each[:2] for each in seen[name] if each[2] <= task.level), None)
        ratios = [b / a for a, b in zip(turns[method], turns[name], strict=False)]
        return [
            name,
            f"{1e6 * statistics.median(turns[name]) / task.chunk:.0f}",
            f"{statistics.median(ratios):.2f}" if theirs else "",
            f"{reached[1]:.1f}" if reached else "–",
            f"{reached[0] * METHODS[method].calls(task):.1e}" if reached else "–",
            f"{min(left for _, _, left in seen[name]):.0e}",
        ]

    return [row(name) for name in sorted(runs, key=lambda name: list(METHODS).index(name.split()[0]))]


CHECKED = frozenset(int(1.35**i) for i in range(45))  # turns after which ‖∇Φ‖² is measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--task", choices=TASKS, nargs="*", default=list(TASKS))
    parser.add_argument("--methods", choices=METHODS, nargs="*", default=list(METHODS))
    parser.add_argument("--seconds", type=float, default=8.0, help="of each method, without measuring")
    parser.add_argument("--against", help="a checkout of benchmark_bilevel")
    given = parser.parse_args()
    if given.against:
        sys.path.insert(0, given.against)
    names, limit = (["SOBA"], 1e-9) if given.quick else (given.methods, given.seconds)
    some = lambda count: count // 14 // SIZE * SIZE if given.quick else count  # of the samples
    for name in given.task:
        task = TASKS[name](some)
        columns = (
            "method",
            "µs a step",
            "theirs / ours",
            f"s to {task.level:.0e}",
            f"calls to {task.level:.0e}",
            "least",
        )
        rows = compare(task, names, limit, bool(given.against))
        record.table(f"variance-{name.replace('_', '-')}", columns, rows, given.record)


if __name__ == "__main__":
    main()
