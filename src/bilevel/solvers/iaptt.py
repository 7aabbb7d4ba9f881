"""IAPTT-GM: a learned starting point and a pessimistic end, for inner problems that are not convex."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax import tree

from bilevel.checks import check_count, prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Info, Solver
from bilevel.solvers.rule import as_rule, descend
from bilevel.solvers.trees import select
from bilevel.solvers.unroll import split, update

PyTree = Any


class IAPTTState(NamedTuple):
    x: PyTree
    y: PyTree  # y_N, where the last inner loop ended
    z: PyTree  # where the next one begins
    outer: PyTree  # state of the outer rule
    start: PyTree  # state of the rule that moves z


def iaptt(
    problem: Problem,
    inner: Any,
    outer: Any,
    inner_steps: int,
    start: Any = None,
    project: Callable[[PyTree], PyTree] = lambda z: z,
) -> Solver:
    """The inner loop starts from z, a variable of the outer problem, and its worst point is differentiated:

        y_0     = z_k,   y_{t+1} = y_t − α ∇_y g(x_k, y_t)                   t = 0, …, N−1
        t̂       = argmax_{1 ≤ t ≤ N} f(x_k, y_t)
        x_{k+1} = x_k − β d/dx f(x_k, y_t̂(x_k, z_k))
        z_{k+1} = P(z_k − ζ d/dz f(x_k, y_t̂(x_k, z_k)))

    Judging by the worst point keeps z from buying a good y_t that the inner problem would leave again. R. Liu,
    Y. Liu, S. Zeng, J. Zhang, "Towards gradient-based bilevel optimization with non-convex followers and beyond",
    NeurIPS 2021. There y and z live in a compact set; here only z is projected, if at all. Without a projection
    an f that is unbounded in y draws z away.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation, whose memory begins anew in every inner loop.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the inner steps, all on the same batch. All N iterates are kept; only t̂ are differentiated.
        start: ζ as a float, or any optax transformation; as `outer` if left out.
        project: P, a function from y's tree to itself.
    """
    inner_rule, outer_rule = as_rule(inner, "inner"), as_rule(outer, "outer")
    start_rule = as_rule(outer if start is None else start, "start")
    steps, oracles = check_count(inner_steps, "inner_steps"), problem.oracles

    def init(x0: PyTree, y0: PyTree, batch: Batch | None = None) -> IAPTTState:
        x, y = prepare(problem, x0, y0, batch)
        return IAPTTState(x, y, y, outer_rule.init(x), start_rule.init(y))

    def step(state: IAPTTState, batch: Batch | None = None) -> tuple[IAPTTState, Info]:
        x, z = state.x, state.z

        def forward(carry, t):
            (y, memory), first = carry
            gradient = oracles.inner_gradient(x, y, batch)
            after = descend(inner_rule, gradient, memory, y)
            return (after, select(t == 0, gradient, first)), (
                (y, memory),
                after[0],
                problem.f(x, after[0], batch),
            )

        begin = (z, inner_rule.init(z)), tree.zeros_like(z)
        times = jnp.arange(steps, dtype=jnp.int32)
        ((y, memory), gradient), (points, afterwards, values) = lax.scan(forward, begin, times)
        worst = jnp.argmax(values)  # t̂ − 1: the step that led to the worst point
        f = oracles.outer_gradients(x, _at(afterwards, worst), batch)

        def back(i, cotangents):
            p, q, x_bar = cotangents
            y, memory = _at(points, worst - i)
            g = oracles.linearise(x, y, batch)
            _, pull_rule, _ = update(inner_rule, g.gradient, memory, y)
            d, q, p = pull_rule((p, q))
            return tree.add(p, g.hessian(d)), q, tree.add(x_bar, g.cross(d))

        cotangents = f.y, tree.zeros_like(split(memory)[0]), f.x
        for_z, _, hypergradient = lax.fori_loop(0, worst + 1, back, cotangents)
        x, outer_memory = descend(outer_rule, hypergradient, state.outer, x)
        z_after, start_memory = descend(start_rule, for_z, state.start, z)
        metrics = {"truncated_at": (worst + 1).astype(f.value.dtype)}
        state = IAPTTState(x, y, project(z_after), outer_memory, start_memory)
        return state, Info(f.value, hypergradient, gradient, metrics)

    def warm_up(state: IAPTTState, batch: Batch | None = None) -> IAPTTState:
        gradient = oracles.inner_gradient(state.x, state.z, batch)
        y, _ = descend(inner_rule, gradient, inner_rule.init(state.z), state.z)
        return state._replace(y=y, z=y)

    return Solver("IAPTT-GM", problem, ("x", "y", "z"), init, step, warm_up)


def _at(stacked: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, index, keepdims=False), stacked)
