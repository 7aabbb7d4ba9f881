"""Several inner steps and the way back through them: an ingredient of every unrolled method.

Forward, from (y_0, m_0), with G_t the field at y_t (∇_y g for ITD) and m_t the rule's memory:

    (y_{t+1}, m_{t+1}) = rule(G_t, m_t, y_t)                          t = 0, …, N−1

Back, from the cotangent p of y_N, with J_t the rule's derivative at step t:

    (d, q, p) ← J_tᵀ (p, q),   x̄ ← x̄ + ∇²_xy g(x, y_t) d,   p ← p + ∇²_yy g(x, y_t) d          t = N−1, …, N−T

For gradient descent d = −αp, so that p ← (I − α∇²_yy g)p: the recursion costs one Hessian and one cross
product a step, both from one linearisation. Stopping after T steps is truncated back-propagation. Only every
`checkpoint_every`-th point is kept; the others are computed again from it on the way back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from optax import tree

from bilevel.checks import check_count
from bilevel.oracles import Linearised, Oracles
from bilevel.problem import Batch
from bilevel.solvers.rule import Rule, descend
from bilevel.solvers.trees import select

PyTree = Any


class Field(NamedTuple):
    """What the inner loop follows, as functions of (x, y, t, batch)."""

    gradient: Callable[[PyTree, PyTree, Any, Any], PyTree]
    linearise: Callable[[PyTree, PyTree, Any, Any], Linearised]


def inner_field(oracles: Oracles) -> Field:
    """∇_y g, the same at every t."""
    return Field(
        gradient=lambda x, y, t, batch: oracles.inner_gradient(x, y, batch),
        linearise=lambda x, y, t, batch: oracles.linearise(x, y, batch),
    )


class Unrolled(NamedTuple):
    y: PyTree  # y_N
    memory: PyTree  # m_N
    gradient: PyTree  # the field at y_0
    pull_back: Callable[[PyTree], tuple[PyTree, Callable[[], PyTree]]]
    # ȳ ↦ (x̄, start): the cotangent of x, and on call that of y_{N−T}; in a one-step loop only those who
    # ask for the latter pay for its Hessian product


def unroll(
    field: Field, rule: Rule, steps: int, truncate: int | None = None, checkpoint_every: int = 1
) -> Callable[[PyTree, PyTree, PyTree, Batch | None], Unrolled]:
    """The loop as `(x, y, memory, batch) -> Unrolled`, the last `truncate` of its `steps` differentiated."""
    steps = check_count(steps, "inner_steps")
    # The last step is linearised as it is taken; the other differentiated ones on the way back.
    tracked = _differentiated(truncate, steps) - 1
    every = check_count(checkpoint_every, "checkpoint_every")
    segments, loose = divmod(tracked, every) if every > 1 else (0, tracked)
    times = np.arange(steps - 1, dtype=np.int32)
    forgotten_times, loose_times, segment_times = np.split(
        times, [steps - 1 - tracked, steps - 1 - segments * every]
    )
    segment_times = segment_times.reshape(segments, every)

    def run(x: PyTree, y: PyTree, memory: PyTree, batch: Batch | None) -> Unrolled:
        def step(point, t):
            y, memory = point
            gradient = field.gradient(x, y, t, batch)
            return descend(rule, gradient, memory, y), gradient

        def visit(carry, t):  # a step that remembers where it began, and the first gradient of all
            point, first = carry
            after, gradient = step(point, t)
            return (after, select(t == 0, gradient, first)), point

        def skim(carry, times):
            return lax.scan(lambda carry, t: (visit(carry, t)[0], None), carry, times)[0]

        def back(cotangents, visited):  # through one step
            p, q, x_bar = cotangents
            (y, memory), t = visited
            g = field.linearise(x, y, t, batch)
            _, pull_rule, _ = update(rule, g.gradient, memory, y)
            d, q, p = pull_rule((p, q))
            return (tree.add(p, g.hessian(d)), q, tree.add(x_bar, g.cross(d))), None

        def back_over(cotangents, segment):  # through `every` steps, walked again from their beginning
            start, times = segment
            _, points = lax.scan(lambda point, t: (step(point, t)[0], point), start, times)
            return lax.scan(back, cotangents, (points, times), reverse=True)

        carry, points, starts = ((y, memory), tree.zeros_like(y)), None, None
        if forgotten_times.size:
            carry = skim(carry, forgotten_times)
        if loose:
            carry, points = lax.scan(visit, carry, loose_times)
        if segments:
            carry, starts = lax.scan(
                lambda carry, times: (skim(carry, times), carry[0]), carry, segment_times
            )

        (y, memory), first = carry
        g = field.linearise(x, y, steps - 1, batch)
        (y, moving), pull_rule, memory = update(rule, g.gradient, memory, y)

        def pull_back(y_bar: PyTree) -> tuple[PyTree, Callable[[], PyTree]]:
            d, q, p = pull_rule((y_bar, tree.zeros_like(moving)))
            if tracked == 0:
                return g.cross(d), lambda: tree.add(p, g.hessian(d))
            cotangents = tree.add(p, g.hessian(d)), q, g.cross(d)
            if segments:
                cotangents, _ = lax.scan(back_over, cotangents, (starts, segment_times), reverse=True)
            if loose:
                cotangents, _ = lax.scan(back, cotangents, (points, loose_times), reverse=True)
            p, _, x_bar = cotangents
            return x_bar, lambda: p

        return Unrolled(y, memory, g.gradient if steps == 1 else first, pull_back)

    return run


def update(rule: Rule, gradient: PyTree, memory: PyTree, y: PyTree) -> tuple[tuple, Callable, PyTree]:
    """One step of `rule`: ((y, moving), pull_back, memory), `moving` being the memory's floating leaves.

    `pull_back((p, q))` takes the cotangents of (y, moving) to those of (gradient, moving, y) before the step;
    counters and keys have no derivative.
    """
    moving, function = differentiable(rule, memory)
    return jax.vjp(function, gradient, moving, y, has_aux=True)


def differentiable(rule: Rule, memory: PyTree) -> tuple[list, Callable]:
    """The memory's floating leaves, and a step as (gradient, moving, y) ↦ ((y, moving), memory)."""
    moving, rebuild = split(memory)

    def function(gradient: PyTree, moving: list, y: PyTree) -> tuple[tuple, PyTree]:
        y, memory = descend(rule, gradient, rebuild(moving), y)
        return (y, split(memory)[0]), memory

    return moving, function


def split(memory: PyTree) -> tuple[list, Callable[[list], PyTree]]:
    """A rule's memory as its floating leaves, and how to put others in their place."""
    leaves, structure = jax.tree.flatten(memory)
    floating = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def rebuild(moving: list) -> PyTree:
        source = iter(moving)
        return structure.unflatten(
            [next(source) if f else leaf for f, leaf in zip(floating, leaves, strict=True)]
        )

    return [leaf for f, leaf in zip(floating, leaves, strict=True) if f], rebuild


def _differentiated(truncate: int | None, steps: int) -> int:
    if truncate is None:
        return steps
    truncate = check_count(truncate, "truncate")
    if truncate > steps:
        raise ValueError(
            f"truncate={truncate} asks to differentiate more steps than inner_steps={steps} takes: "
            f"pass truncate={steps} or less, or leave it out to differentiate them all"
        )
    return truncate
