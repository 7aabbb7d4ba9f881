"""Noise of minibatches: the deviations that a certificate needs, and their measurement at a point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import MANY, check_count, check_known, check_problem, prepare
from bilevel.loop.data.streams import Stream, as_stream
from bilevel.problem import Problem
from bilevel.solvers.parts.trees import scaled
from bilevel.theory.reals import Real, nonnegative, scalar
from bilevel.types import PyTree

POWER_STEPS = 30
TINY = 1e-30


@dataclass(frozen=True, init=False)
class Noise:
    """Standard deviations of the oracles of one draw, which are unbiased: σ² bounds a mean squared norm.

    * `inner`, σ_y: of ∇_y g at the solution y*(x);
    * `adjoint`, σ_f: of ∇_y f;
    * `outer`, σ_x: of ∇_x f;
    * `hessian`, σ_H: E‖(∇²_yy g_B − ∇²_yy g)u‖² ≤ σ_H²‖u‖² for every u;
    * `cross`, σ_C: E‖(∇²_xy g_B − ∇²_xy g)u‖² ≤ σ_C²‖u‖² for every u.

    The last two are zero where g's data enter linearly in y. They multiply v̂ and ŷ − y*, which the
    certificate bounds through its own system. A batch of m rows, drawn with replacement, has 1/√m of the
    deviations of one row: `noise.of_batches(m)`.
    """

    inner: float
    adjoint: float
    outer: float
    hessian: float
    cross: float

    def __init__(
        self, inner: Real, adjoint: Real, outer: Real, hessian: Real = 0.0, cross: Real = 0.0
    ) -> None:
        given = {"inner": inner, "adjoint": adjoint, "outer": outer, "hessian": hessian, "cross": cross}
        for name, value in given.items():
            deviation = nonnegative(value, name, "it is a standard deviation, zero for an exact oracle")
            object.__setattr__(self, name, scalar(deviation, name))

    def of_batches(self, rows: int, outer_rows: int | None = None) -> Noise:
        """Return the noise of means over `rows` independent draws of g's data and `outer_rows` of f's."""
        outer_rows = rows if outer_rows is None else outer_rows
        g, f = _rows(rows, "rows") ** 0.5, _rows(outer_rows, "outer_rows") ** 0.5
        return Noise(self.inner / g, self.adjoint / f, self.outer / f, self.hessian / g, self.cross / g)


def _rows(count: int, name: str) -> float:
    if isinstance(count, int) and count < 1:
        raise ValueError(f"a batch has at least one row, got {name} = {count}")
    return scalar(nonnegative(check_count(count, name, most=MANY), name, "it is a number of rows"), name)


def measure_noise(problem: Problem, x: PyTree, y: PyTree, data: Any, draws: int = 256) -> Noise:
    """Measure the deviations of `draws` batches of the stream `data` around their mean, at (x, y).

    The certificate needs bounds at y*(x), and for the second derivatives along the whole run: measure at
    several points and take the largest of each, with a margin. A measured deviation has a relative error of
    about 1/√(2·draws).

    Args:
        problem: the two objectives.
        x: the outer point.
        y: the inner point, near y*(x).
        data: a stream such as `bl.iid(data, size)`.
        draws: the number of batches.
    """
    check_problem(problem)
    stream, count = as_stream(data), check_count(draws, "draws", least=2)
    if data is None:
        raise ValueError("data must be a stream of minibatches, not None: pass e.g. bl.iid(data, 8)")
    x, y = prepare(problem, x, y, stream.next(stream.start(0))[1], ("x", "y"))
    check_known(x=x, y=y, data=stream)
    squares = problem.compiled(_squares, count)(stream, x, y)
    return Noise(*(float(jnp.sqrt(square / (count - 1))) for square in squares))


def _squares(problem: Problem, count: int, stream: Stream, x: PyTree, y: PyTree) -> list[Any]:
    """Return Σ‖·‖² around the mean: for ∇_y g, ∇_y f, ∇_x f, and the largest Hessian and cross products."""
    oracles = problem.oracles
    _, batches = lax.scan(lambda cursor, _: stream.next(cursor), stream.start(0), length=count)
    every = lambda function: jax.vmap(function)(batches)
    outer = every(lambda batch: oracles.outer_gradients(x, y, batch))
    gradients = every(lambda batch: oracles.inner_gradient(x, y, batch)), outer.y, outer.x
    hessian = lambda u: _centered(every(lambda batch: oracles.linearize(x, y, batch).hessian(u)))
    cross = lambda u: _centered(every(lambda batch: oracles.linearize(x, y, batch).cross(u)))
    squares = [tree.norm(_centered(each), squared=True) for each in gradients]
    return [*squares, _largest(hessian, y), _largest(cross, y)]


def _centered(stacked: PyTree) -> PyTree:
    return jax.tree.map(lambda a: a - jnp.mean(a, axis=0, keepdims=True), stacked)


def _largest(linear: Callable[[PyTree], PyTree], like: PyTree) -> Any:
    """Return the max over ‖u‖ = 1 of ‖linear(u)‖², by power iteration on its Gram operator."""
    back = jax.linear_transpose(linear, like)
    unit = lambda u: scaled(1 / (tree.norm(u) + TINY), u)  # zero for a zero operator
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    u = structure.unflatten(
        [jax.random.normal(key, a.shape, a.dtype) for key, a in zip(keys, leaves, strict=True)]
    )
    u = lax.fori_loop(0, POWER_STEPS, lambda _, u: unit(back(linear(u))[0]), unit(u))
    return tree.norm(linear(u), squared=True)
