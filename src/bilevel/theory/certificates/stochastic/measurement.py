"""The noise of a problem's minibatches at a point, measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count, check_known, check_problem, prepare
from bilevel.loop.data.streams import Stream, as_stream
from bilevel.problem import Problem
from bilevel.solvers.parts.trees import scaled
from bilevel.theory.certificates.stochastic.noise import Noise
from bilevel.types import PyTree

POWER_STEPS = 30
TINY = 1e-30


def measure_noise(problem: Problem, x: PyTree, y: PyTree, data: Any, draws: int = 256) -> Noise:
    """Deviations of `draws` batches of the stream `data` around their mean, at (x, y).

    The certificate wants bounds at y*(x), and of the second derivatives all along the run: measure at several points
    and take the largest of each, with a margin, as a measured deviation is itself off by about one in √(2·draws).

    Args:
        problem: the two objectives.
        x: the outer point.
        y: the inner point, near y*(x).
        data: a stream such as `bl.iid(data, size)`.
        draws: how many batches to compare.
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
    """Σ‖·‖² over the draws around their mean: of ∇_y g, ∇_y f, ∇_x f, and the most of Hessian and cross products."""
    oracles = problem.oracles
    _, batches = lax.scan(lambda cursor, _: stream.next(cursor), stream.start(0), length=count)
    every = lambda function: jax.vmap(function)(batches)
    outer = every(lambda batch: oracles.outer_gradients(x, y, batch))
    gradients = every(lambda batch: oracles.inner_gradient(x, y, batch)), outer.y, outer.x
    hessian = lambda u: _centerd(every(lambda batch: oracles.linearize(x, y, batch).hessian(u)))
    cross = lambda u: _centerd(every(lambda batch: oracles.linearize(x, y, batch).cross(u)))
    return [*(_energy(_centerd(each)) for each in gradients), _largest(hessian, y), _largest(cross, y)]


def _centerd(stacked: PyTree) -> PyTree:
    return jax.tree.map(lambda a: a - jnp.mean(a, axis=0, keepdims=True), stacked)


def _energy(stacked: PyTree) -> Any:
    return tree.norm(stacked, squared=True)


def _largest(linear: Callable[[PyTree], PyTree], like: PyTree) -> Any:
    """max over ‖u‖ = 1 of ‖linear(u)‖², by power iteration on its Gram operator."""
    back = jax.linear_transpose(linear, like)
    unit = lambda u: scaled(1 / (tree.norm(u) + TINY), u)  # of an operator that is zero, zero
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    u = structure.unflatten(
        [jax.random.normal(key, a.shape, a.dtype) for key, a in zip(keys, leaves, strict=True)]
    )
    u = lax.fori_loop(0, POWER_STEPS, lambda _, u: unit(back(linear(u))[0]), unit(u))
    return _energy(linear(u))
