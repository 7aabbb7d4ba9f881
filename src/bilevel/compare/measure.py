"""One method on one task: how good its x is after so many oracle calls and so many seconds."""

import math
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from bilevel.compare.methods import Method
from bilevel.compare.tasks import Task, quadratic_task
from bilevel.counting import Counts, counted
from bilevel.problem import Problem
from bilevel.streams import as_stream

PyTree = Any


class Point(NamedTuple):
    """Where a run stood."""

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
    """The method at the outer step size, of the task's grid, that left the smallest value for its calls."""
    run, judge = _Run(method, task, task.problem), jax.jit(task.measure)
    counter = _Counter(method, task)
    rate = task.rates[len(task.rates) // 2]
    steps = counter.affordable(rate)
    if len(task.rates) > 1:
        final = {rate: _finite(judge(run.to(rate, steps).x)) for rate in task.rates}
        rate = min(final, key=lambda rate: final[rate])
        steps = counter.affordable(rate)

    ends = list(_checkpoints(steps, task.per_octave))
    points, carry, seconds, begun = [], run.start(rate), 0.0, 0
    for end, cost in zip(ends, counter.costs(rate, ends), strict=True):
        after, took = _timed(partial(run.advance, rate, carry, end - begun), task.repeats)
        carry, seconds, begun = after, seconds + took, end
        points.append(Point(end, cost.Gc, cost.Mv, seconds, _finite(judge(carry[0].x))))
    return Curve(method, rate, points)


class _Run:
    """A method's compiled loop, of any length and for any outer step size."""

    def __init__(self, method: Method, task: Task, problem: Problem):
        stream = as_stream(method.data(task.data))
        make = lambda rate: method.make(problem, task.L, task.outer(rate))

        def start(rate, stream):
            cursor = stream.start(0)
            return make(rate).init(task.x0, task.y0, stream.next(cursor)[1]), cursor

        def advance(rate, carry, stream, steps):
            solver = make(rate)

            def body(_, carry):
                state, cursor = carry
                cursor, batch = stream.next(cursor)
                return solver.step(state, batch)[0], cursor

            return lax.fori_loop(0, steps, body, carry)

        self._start, self._advance, self._stream = jax.jit(start), jax.jit(advance), stream

    def start(self, rate: float) -> PyTree:
        carry = self._start(rate, self._stream)
        return jax.block_until_ready(self.advance(rate, carry, 0))  # compiles, and moves nothing

    def advance(self, rate: float, carry: PyTree, steps: int) -> PyTree:
        return self._advance(rate, carry, self._stream, steps)

    def to(self, rate: float, steps: int) -> Any:
        return self.advance(rate, self._start(rate, self._stream), steps)[0]


class _Counter:
    """What a method's steps cost on a task: the same at every step, or counted along the run."""

    def __init__(self, method: Method, task: Task):
        self.method, self.task = method, task
        if method.varies:
            problem, self._counter = counted(task.problem)
            self._run = _Run(method, task, problem)

    def affordable(self, rate: float) -> int:
        """How many steps the task's oracle calls are good for."""
        if not self.method.varies:
            return max(1, self.task.calls // _total(_per_step(self.method)))
        carry, steps = self._begin(rate), 0
        while (spent := _total(self._counter.total)) < self.task.calls:
            left = (self.task.calls - spent) * max(steps, 1) / max(spent, 1)
            more = max(1, min(steps, math.ceil(left)))
            carry, steps = jax.block_until_ready(self._run.advance(rate, carry, more)), steps + more
        return steps

    def costs(self, rate: float, ends: list[int]) -> list[Counts]:
        """Oracle calls made by the ends of so many steps."""
        if not self.method.varies:
            return [Counts(*(end * each for each in _per_step(self.method))) for end in ends]
        carry, costs = self._begin(rate), []
        for before, end in zip([0, *ends[:-1]], ends, strict=True):
            carry = jax.block_until_ready(self._run.advance(rate, carry, end - before))
            costs.append(self._counter.total)
        return costs

    def _begin(self, rate: float) -> PyTree:
        carry = self._run.start(rate)
        self._counter.reset()
        return carry


@cache
def _per_step(method: Method) -> Counts:
    """The calls of one step, which do not depend on the task: counted on the smallest one."""
    with jax.enable_x64(True):
        task = quadratic_task(quick=True)
        problem, counter = counted(task.problem)
        run = _Run(method, task, problem)
        carry = run.start(task.rates[-1])
        counter.reset()
        jax.block_until_ready(run.advance(task.rates[-1], carry, 2))
        two = counter.total
    return Counts(*(each // 2 for each in two))


def _timed(work: Callable[[], PyTree], repeats: int) -> tuple[PyTree, float]:
    """What `work` returns and its shortest time: longer ones are other programs' doing."""
    result, seconds = None, []
    for _ in range(repeats):
        began = time.perf_counter()
        result = jax.block_until_ready(work())
        seconds.append(time.perf_counter() - began)
    return result, min(seconds)


def _total(counts: Counts) -> int:
    return counts.Gc + counts.Mv


def _checkpoints(steps: int, per_octave: int) -> Iterator[int]:
    count, ratio = 1.0, 2 ** (1 / per_octave)
    last = 0
    while count < steps:
        if round(count) > last:
            last = round(count)
            yield last
        count *= ratio
    yield steps


def _finite(value: Any) -> float:
    return float(value) if np.isfinite(value) else float("inf")
