"""Measurement of one method on one task: the quality of its x by oracle calls and by seconds."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.counting import counted_step, oracle_calls
from bilevel.lab.compare.methods import Method
from bilevel.lab.compare.tasks import Task
from bilevel.loop.data.streams import as_stream
from bilevel.loop.program import program_of
from bilevel.loop.state import RunState, start
from bilevel.solvers.base import Info, Solver
from bilevel.types import PyTree


class Point(NamedTuple):
    """State of a run after some steps."""

    steps: int
    gradients: int  # Gc
    products: int  # Mv
    seconds: float  # without compilation
    value: float  # the task's yardstick

    @property
    def calls(self) -> int:
        return self.gradients + self.products


class Curve(NamedTuple):
    """One method on one task, at its best outer step size."""

    method: Method
    rate: float
    points: list[Point]


def measure(method: Method, task: Task) -> Curve:
    """Measure the method at the outer step size of the task's grid that ends with the smallest value."""
    compiled = jax.jit(task.measure)
    judge = lambda x: _finite(compiled(x))
    data = method.data(task.instance.data)
    loop_at = lambda rate: Loop(solver_of(method, task, rate), task, data, len(cost))
    rate = task.rates[len(task.rates) // 2]
    cost = costs(method, task, rate)
    if len(task.rates) > 1:
        rate = min(task.rates, key=lambda rate: judge(loop_at(rate).end(len(cost)).x))
        cost = costs(method, task, rate) if method.varies else cost

    loop = loop_at(rate)
    # On small problems a call costs more than its steps, so its cost is counted once.
    _, call = loop.timed(loop.start, 0, task.repeats)
    points, at, seconds, begun = [], loop.start, call, 0
    for end in checkpoints(len(cost), task.per_octave):
        at, took = loop.timed(at, end - begun, task.repeats)
        seconds, begun = seconds + max(took - call, 0.0), end
        gradients, products = map(int, cost[end - 1])
        points.append(Point(end, gradients, products, seconds, judge(at.x)))
    return Curve(method, rate, points)


def costs(method: Method, task: Task, rate: float) -> np.ndarray:
    """Return (gradients, products) after every step that the task's budget allows, at least one step."""
    solver, instance = solver_of(method, task, rate), task.instance
    if not method.varies:
        data = as_stream(method.data(instance.data))
        calls = oracle_calls(solver, start(solver, instance.x0, instance.y0, data), data)
        one = np.array([calls.Gc, calls.Mv])
        return one * np.arange(1, 1 + max(1, task.calls // one.sum()))[:, None]
    loop = Loop(Counted(solver.problem, solver), task, method.data(instance.data), task.calls)
    at, paid = loop.start, np.zeros((1, 2), int)
    while (left := task.calls - paid[-1].sum()) > 0:
        steps = len(paid) - 1
        at_this_price = math.ceil(left * max(steps, 1) / max(paid[-1].sum(), 1))
        at, filled = loop.advance(at, max(1, min(steps, at_this_price)))
        columns = lambda rows, count: np.stack([rows["gradients"][:count], rows["products"][:count]], axis=1)
        spent = np.concatenate([columns(*part) for part in filled])
        paid = np.concatenate([paid, paid[-1] + np.cumsum(spent, axis=0)])
    return paid[1:]


def solver_of(method: Method, task: Task, rate: float) -> Solver:
    solver = method.make(task.instance.problem, task.instance.L, task.outer(rate))
    if not isinstance(solver, Solver):
        raise TypeError(f"the method {method.name!r} must make a solver, but made a {type(solver).__name__}")
    return solver


class Loop:
    """Compiled loop under `bl.run`, without the part on the host: one program for all step sizes and lengths."""

    def __init__(self, solver: Solver, task: Task, data: Any, steps: int):
        self.program, self.leaves = program_of(solver, None)
        self.stream = as_stream(data)
        x0, y0 = task.instance.x0, task.instance.y0
        self.start = self.program.start(self.leaves, x0, y0, self.stream, np.uint32(0), None)
        self.fit = self.program.fit(self.leaves, self.start, self.stream, steps)
        jax.block_until_ready(self.advance(self.start, 0))  # compiles, and moves nothing

    def advance(self, at: RunState, steps: int) -> tuple[RunState, list[tuple[Any, int]]]:
        """Return the run after so many more steps, and the pieces of its trace with their filled rows."""
        pieces = []
        for done in range(0, max(steps, 1), self.fit.count):
            count = min(self.fit.count, steps - done)
            at, rows, *_ = self.program.keeping.chunk(self.leaves, at, self.stream, self.fit.blank, count)
            pieces.append((rows, count))
        return at, pieces

    def end(self, steps: int) -> RunState:
        return self.advance(self.start, steps)[0]

    def timed(self, at: RunState, steps: int, repeats: int) -> tuple[RunState, float]:
        """Return the run after `steps` more steps, and the shortest time, the least disturbed one."""
        after, seconds = at, []
        for _ in range(repeats):
            began = time.perf_counter()
            after, _ = jax.block_until_ready(self.advance(at, steps))
            seconds.append(time.perf_counter() - began)
        return after, min(seconds)


class Counted(Solver):
    """Wrapper of `solver`, bit for bit equal, whose metrics are the oracle calls of the step; they are traced."""

    solver: Solver

    @property
    def draws(self) -> int:
        return self.solver.draws

    def init(self, x0: PyTree, y0: PyTree, batch: Any = None) -> Any:
        return self.solver.init(x0, y0, batch)

    def step(self, state: Any, batch: Any = None) -> tuple[Any, Info]:
        state, info, calls = counted_step(self.solver)(state, batch)
        counts = {"gradients": jnp.asarray(calls.Gc, jnp.int32), "products": jnp.asarray(calls.Mv, jnp.int32)}
        return state, replace(info, metrics=counts)


def checkpoints(steps: int, per_octave: int) -> Iterator[int]:
    count, ratio, last = 1.0, 2 ** (1 / per_octave), 0
    while count < steps:
        if round(count) > last:
            yield (last := round(count))
        count *= ratio
    yield steps


def _finite(value: Any) -> float:
    return float(value) if np.isfinite(value) else float("inf")
