"""Sub-optimality of stochastic methods against oracle calls and against time, and beside benchmark_bilevel's solvers.

    python benchmarks/variance_reduction.py [--task quadratics] [--seconds 15] [--against PATH]

Three problems: the quadratics of benchmark_bilevel (4,096 inner and 1,024 outer samples with matrices of their own),
ridge-logistic regression with one log-ridge per feature, and data cleaning with one weight per example. Batches of 64
and step sizes as benchmark_bilevel publishes for these tasks. The measure is ‖∇Φ(x)‖², from an inner problem solved by
Newton's method in double precision; the clock stands still for it.

PATH is a checkout of github.com/benchopt/benchmark_bilevel (with `pip install benchopt`): its SABA, SRBA and SOBA then
take turns with ours on the same functions of the same arrays. A ratio is the median over turns of theirs to ours.
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

import bilevel as bl

SIZE = 64
LEVELS = 1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12  # of ‖∇Φ‖² that a method may reach


@dataclass
class Task:
    problem: bl.Problem
    data: bl.Batch
    x0: jax.Array
    y0: jax.Array
    steps: dict[str, tuple[float, float]]  # by method: inner step size, outer step size
    period: int  # of SRBA, in steps
    reduced: bl.Batch | None = None  # fewer data with the same means, to measure with

    @property
    def counts(self) -> tuple[int, int]:
        rows = lambda part: len(jax.tree.leaves(part)[0])
        return rows(self.data.inner), rows(self.data.outer)


def quadratics() -> Task:
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
    problem, data = bl.Problem(inner=mean, outer=mean), bl.Batch(samples(4096), samples(1024))
    sizes = {
        "SABA": (0.1, 0.1),
        "SRBA": (0.1, 0.1),
        "SOBA": (0.1, 0.1),
        "stocBiO": (0.1, 0.1),
        "AmIGO": (0.01, 0.1),
    }
    reduced = jax.tree.map(lambda a: np.mean(a, axis=0, dtype=float, keepdims=True), data)
    return Task(problem, data, -2 * jnp.ones(n_x), jnp.zeros(n_y), sizes, 40, reduced)


def ridge_logistic() -> Task:
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
    return Task(problem, bl.Batch(rows(12_480), rows(22_912)), x0, jnp.zeros(n), sizes, period=270)


def cleaning() -> Task:
    """Ten noisy classes in 16 dimensions, half of the training labels drawn at random; x weighs the examples."""
    rng, n, train = np.random.default_rng(2), 16, 2048
    centres = rng.normal(size=(10, n))

    def rows(count, wrong):
        label = rng.integers(0, 10, count)
        a = centres[label] + 1.5 * rng.normal(size=(count, n))
        label = np.where(rng.random(count) < wrong, rng.integers(0, 10, count), label)
        return jnp.asarray(a, jnp.float32), jnp.asarray(np.eye(10)[label], jnp.float32)

    def losses(y, batch):
        return -jnp.sum(batch[1] * jax.nn.log_softmax(batch[0] @ y.reshape(n, 10)), axis=1)

    def inner(x, y, batch, *, rows):
        return jnp.mean(jax.nn.sigmoid(x[rows]) * losses(y, batch)) + 0.2 * jnp.sum(y * y)

    problem = bl.Problem(inner=inner, outer=lambda x, y, batch: jnp.mean(losses(y, batch)))
    sizes = {
        "SABA": (0.1, 100.0),
        "SRBA": (0.1, 100.0),
        "SOBA": (0.1, 100.0),
        "stocBiO": (0.1, 100.0),
        "AmIGO": (0.1, 100.0),
    }
    data = bl.Batch(rows(train, 0.5), rows(512, 0.0))
    return Task(problem, data, -2 * jnp.ones(train), jnp.zeros(10 * n), sizes, period=20)


TASKS = {task.__name__: task for task in (quadratics, ridge_logistic, cleaning)}


def measure(task: Task) -> Callable[[jax.Array], float]:
    """x ↦ ‖∇Φ(x)‖² in double precision."""
    f, g = task.problem.f, task.problem.g
    state = {"y": np.asarray(task.y0, float)}
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), float), task.reduced or task.data)
        data = bl.Batch(wide.inner, wide.outer, bl.Levels(*(jnp.arange(count) for count in task.counts)))
        gradient, hessian = jax.jit(jax.grad(g, 1)), jax.jit(jax.hessian(g, 1))
        outer, cross = (
            jax.jit(jax.grad(f, (0, 1))),
            jax.jit(lambda x, y, v, b: jax.grad(lambda x: jax.grad(g, 1)(x, y, b) @ v)(x)),
        )

    def at(x: jax.Array) -> float:
        with jax.enable_x64(True):
            x, y = jnp.asarray(np.asarray(x), float), jnp.asarray(state["y"])
            left = np.inf
            while (size := float(jnp.linalg.norm(r := gradient(x, y, data)))) < 0.5 * left:  # until rounding
                left, y = size, y - jnp.linalg.solve(hessian(x, y, data), r)
            state["y"] = np.asarray(y)
            f_x, f_y = outer(x, y, data)
            h = f_x - cross(x, y, jnp.linalg.solve(hessian(x, y, data), f_y), data)
            return float(h @ h)

    return at


@dataclass
class Method:
    """A solver of ours, and how many derivatives of examples a step of it evaluates."""

    make: Callable[[Task, float, float], bl.Solver]
    calls: Callable[[Task], float]


decreasing = lambda size: optax.sgd(lambda k: size / jnp.sqrt(k + 1.0))
METHODS = {
    "SABA": Method(lambda t, a, b: bl.saba(t.problem, a, a, b), lambda t: 5 * SIZE),
    "SRBA": Method(
        lambda t, a, b: bl.srba(t.problem, a, a, b, period=t.period),
        lambda t: (10 * SIZE * (t.period - 1) + 3 * t.counts[0] + 2 * t.counts[1]) / t.period,
    ),
    "SOBA": Method(
        lambda t, a, b: bl.soba(t.problem, decreasing(a), decreasing(a), decreasing(b)), lambda t: 5 * SIZE
    ),
    "stocBiO": Method(
        lambda t, a, b: bl.stocbio(t.problem, a, a, b, products=10, inner_steps=10), lambda t: 23 * SIZE
    ),
    "AmIGO": Method(
        lambda t, a, b: bl.aid(t.problem, a, bl.adjoints.steps(a, 10), b, inner_steps=10), lambda t: 23 * SIZE
    ),
}


class Ours:
    def __init__(self, name: str, task: Task, chunk: int):
        self.solver = METHODS[name].make(task, *task.steps[name])
        self.stream = bl.blocks(task.data, SIZE, seed=1)
        nothing = lambda state, info: {}
        advance = lambda run, stream: bl.scan(self.solver, run, stream, steps=chunk, record=nothing)[0]
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

    def __init__(self, name: str, task: Task, chunk: int):
        made = importlib.import_module(f"solvers.{name.lower()}").Solver
        made.run_once = lambda *_, **__: None
        a, b = task.steps[name]
        options = dict(step_size=a, outer_ratio=a / b, batch_size=SIZE, eval_freq=chunk, random_state=1)
        if name == "SRBA":
            options["period_frac"] = task.period * SIZE / sum(task.counts)
        self.solver = made.get_instance(**options)
        self.solver.set_objective(
            self._sliced(task.problem.g, task.data.inner, "inner"),
            self._sliced(task.problem.f, task.data.outer, "outer"),
            *task.counts,
            task.y0,
            task.x0,
        )
        self.name, self.chunk = name, chunk
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


def compare(task: Task, names: list[str], limit: float, chunk: int, with_theirs: bool) -> None:
    error = measure(task)
    runs: dict[str, Any] = {name: Ours(name, task, chunk) for name in names}
    pairs = [name for name in ("SABA", "SRBA", "SOBA") if with_theirs and name in names]
    runs |= {f"{name} (theirs)": Theirs(name, task, chunk) for name in pairs}
    for run in runs.values():
        run.turn()  # compiles
        run.restart()
    print(f"start: ‖∇Φ‖² = {error(task.x0):.1e}")
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
                seen[name].append((len(turns[name]) * chunk, clock[name], error(x)))
    for name, rows in seen.items():
        reached = min(rows, key=lambda row: row[2])
        calls = METHODS[name.split()[0]].calls(task)
        print(
            f"{name:16s} {1e6 * statistics.median(turns[name]) / chunk:7.0f} µs a step, least {reached[2]:.1e};",
            end="",
        )
        for level in LEVELS:
            if first := next((row for row in rows if row[2] <= level), None):
                print(
                    f"  {level:.0e}: {first[0]} steps, {first[0] * calls:.1e} calls, {first[1]:.2f} s;",
                    end="",
                )
        print()
    for name in pairs:
        ratios = [b / a for a, b in zip(turns[name], turns[f"{name} (theirs)"], strict=False)]
        line = f"{name}: a step of theirs takes {statistics.median(ratios):.2f} of ours"
        for level in LEVELS:
            firsts = [
                next((row for row in seen[key] if row[2] <= level), None)
                for key in (name, f"{name} (theirs)")
            ]
            if all(firsts):
                line += f"; to {level:.0e} {firsts[1][1] / firsts[0][1]:.2f}"
        print(line)


CHECKED = frozenset(int(1.35**i) for i in range(45))  # turns after which ‖∇Φ‖² is measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, nargs="*", default=list(TASKS))
    parser.add_argument("--methods", choices=METHODS, nargs="*", default=list(METHODS))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each method, without measuring")
    parser.add_argument("--chunk", type=int, default=64, help="steps a turn")
    parser.add_argument("--against", help="a checkout of benchmark_bilevel")
    given = parser.parse_args()
    if given.against:
        sys.path.insert(0, given.against)
    for name in given.task:
        print(f"== {name}")
        compare(TASKS[name](), given.methods, given.seconds, given.chunk, bool(given.against))


if __name__ == "__main__":
    main()
