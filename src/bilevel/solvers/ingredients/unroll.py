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

from bilevel.batch import Batch
from bilevel.checks import check_count
from bilevel.oracles import Curvature, Linearised
from bilevel.problem import Problem
from bilevel.solvers.ingredients.inner import inner_rule
from bilevel.solvers.ingredients.trees import select
from bilevel.solvers.rules import Proximal, Rule, ValueFunction, descend
from bilevel.types import PyTree, Scalar


class Field(NamedTuple):
    """What the inner loop follows, as functions of (x, y, t, batch)."""

    direction: Callable[..., tuple[PyTree, PyTree]]  # G_t, and ∇_y g, which is reported whatever G_t is
    linearise: Callable[..., Linearised]  # G_t with its products
    curvature: Callable[..., Curvature]  # its products, each a pass of its own
    value: Callable[..., Scalar]  # what G_t is the gradient of
    rule_at: Callable[[Rule, PyTree], Rule] = lambda rule, x: (
        rule
    )  # the rule at x, for a proximal map that depends on x


def inner_field(problem: Problem) -> Field:
    """∇_y g, the same at every t."""

    def direction(x: PyTree, y: PyTree, t: Any, batch: Batch | None) -> tuple[PyTree, PyTree]:
        gradient = problem.oracles.inner_gradient(x, y, batch)
        return gradient, gradient

    linearise = lambda x, y, t, batch: problem.oracles.linearise(x, y, batch)
    curvature = lambda x, y, t, batch: problem.oracles.curvature(x, y, batch)
    value = lambda x, y, t, batch: problem.g(x, y, batch)
    return Field(direction, linearise, curvature, value, lambda rule, x: inner_rule(problem, rule, x))


class Lengths(NamedTuple):
    """How many steps, how many of the last of them are differentiated, and how far apart the kept points are."""

    steps: int
    differentiated: int
    every: int


def lengths(inner_steps: int, truncate: int | None = None, checkpoint_every: int = 1) -> Lengths:
    """The lengths asked for, once they are known to fit together."""
    steps = check_count(inner_steps, "inner_steps")
    return Lengths(steps, _differentiated(truncate, steps), check_count(checkpoint_every, "checkpoint_every"))


class Unrolled(NamedTuple):
    y: PyTree  # y_N
    memory: PyTree  # m_N
    gradient: PyTree  # ∇_y g at y_0
    pull_back: Callable[[PyTree], tuple[PyTree, Callable[[], PyTree]]]
    # ȳ ↦ (x̄, start): the cotangent of x, and on call that of y_{N−T}; in a one-step loop only those who
    # ask for the latter pay for its Hessian product
    repeat: Callable[[PyTree], PyTree]  # x ↦ y_N, with y_{N−T} and the memory there held fixed


def unroll(
    field: Field, rule: Rule, lengths: Lengths, x: PyTree, y: PyTree, memory: PyTree, batch: Batch | None
) -> Unrolled:
    """The loop from (y, memory) at x, the last of its steps differentiated."""
    steps, tracked, every = lengths.steps, lengths.differentiated - 1, lengths.every
    segments, tail = divmod(tracked, every) if every > 1 else (0, tracked)
    times = np.arange(steps - 1, dtype=np.int32)
    discarded_times, tail_times, segment_times = np.split(
        times, [steps - 1 - tracked, steps - 1 - segments * every]
    )
    segment_times = segment_times.reshape(segments, every)
    plain, rule = rule, field.rule_at(rule, x)

    def value_at(t):
        return lambda y: field.value(x, y, t, batch)

    def step(point, t):
        y, memory = point
        direction, gradient = field.direction(x, y, t, batch)
        return descend(rule, direction, memory, y, value_at(t)), gradient

    def visit(carry, t):  # a step that remembers where it began, and the first gradient of all
        point, first = carry
        after, gradient = step(point, t)
        return (after, select(t == 0, gradient, first)), point

    def discard(carry, times):
        return lax.scan(lambda carry, t: (visit(carry, t)[0], None), carry, times)[0]

    def back(cotangents, visited):  # through one step
        p, q, x_bar = cotangents
        (y, memory), t = visited
        g = field.linearise(x, y, t, batch)
        _, pull_rule, _ = update(rule, g.gradient, memory, y, value_at(t))
        x_bar = through_map(x_bar, rule, g.gradient, memory, y, p)
        d, q, p = pull_rule((p, q))
        hessian, cross = g.both(d)
        return (tree.add(p, hessian), q, tree.add(x_bar, cross)), None

    def back_over(cotangents, segment):  # through `every` steps, walked again from their beginning
        start, times = segment
        _, points = lax.scan(lambda point, t: (step(point, t)[0], point), start, times)
        return lax.scan(back, cotangents, (points, times), reverse=True)

    carry, points, starts = ((y, memory), tree.zeros_like(y)), None, None
    if discarded_times.size:
        carry = discard(carry, discarded_times)
    start, differentiated_times = carry[0], np.arange(steps - 1 - tracked, steps, dtype=np.int32)
    if tail:
        carry, points = lax.scan(visit, carry, tail_times)
    if segments:
        carry, starts = lax.scan(lambda carry, times: (discard(carry, times), carry[0]), carry, segment_times)

    (y_last, memory_last), first = carry
    last = x, y_last, steps - 1, batch
    direction, gradient = field.direction(*last)
    (y, moving), pull_rule, memory = update(rule, direction, memory_last, y_last, value_at(steps - 1))

    def pull_back(y_bar: PyTree) -> tuple[PyTree, Callable[[], PyTree]]:
        d, q, p = pull_rule((y_bar, tree.zeros_like(moving)))
        x_bar = through_map(tree.zeros_like(x), rule, direction, memory_last, y_last, y_bar)
        if tracked == 0:  # of one step alone, whoever asks for one product pays for one
            g = field.curvature(*last)
            return tree.add(x_bar, g.cross(d)), lambda: tree.add(p, g.hessian(d))
        hessian, cross = field.linearise(*last).both(d)
        cotangents = tree.add(p, hessian), q, tree.add(x_bar, cross)
        if segments:
            cotangents, _ = lax.scan(back_over, cotangents, (starts, segment_times), reverse=True)
        if tail:
            cotangents, _ = lax.scan(back, cotangents, (points, tail_times), reverse=True)
        p, _, x_bar = cotangents
        return x_bar, lambda: p

    repeat = lambda x: follow(field, plain, differentiated_times, x, *start, batch)
    return Unrolled(y, memory, gradient if steps == 1 else first, pull_back, repeat)


def follow(
    field: Field, rule: Rule, times: Any, x: PyTree, y: PyTree, memory: PyTree, batch: Batch | None
) -> PyTree:
    """y after the steps at those times, as a function of x for rules that ask for the value of f(x, y_N(x))."""

    rule = field.rule_at(rule, x)

    def step(point, t):
        y, memory = point
        direction, _ = field.direction(x, y, t, batch)
        value = held_fixed(lambda y: field.value(x, y, t, batch))
        return descend(rule, direction, memory, y, value), None

    return lax.scan(step, (y, memory), times)[0][0]


def update(
    rule: Rule, gradient: PyTree, memory: PyTree, y: PyTree, value: ValueFunction | None
) -> tuple[tuple[Any, ...], Callable[..., Any], PyTree]:
    """One step of `rule`: ((y, moving), pull_back, memory), `moving` being the memory's floating leaves.

    `pull_back((p, q))` takes the cotangents of (y, moving) to those of (gradient, moving, y) before the step;
    counters and keys have no derivative, and the value that some rules ask for is held fixed.
    """
    moving, function = differentiable(rule, memory, value)
    out, pull_back, memory = jax.vjp(function, gradient, moving, y, has_aux=True)

    def pull(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            return pull_back(cotangents)
        except ValueError as error:
            if "Reverse-mode differentiation does not work" not in str(error):
                raise
            raise TypeError(
                "this method differentiates through the inner rule, and this rule searches along a line, which has no "
                "derivative: pass a rule without (such as optax.lbfgs(..., linesearch=None)), or use bl.aid"
            ) from error

    return out, pull, memory


def through_map(
    x_bar: PyTree, rule: Rule, gradient: PyTree, memory: PyTree, y: PyTree, y_bar: PyTree
) -> PyTree:
    """x̄ and what a cotangent of the new y adds to it through a proximal map that depends on x."""
    if not isinstance(rule, Proximal):
        return x_bar
    ahead, _ = rule.rule.update(gradient, memory, y)
    settle = lambda x: Proximal(rule.rule, x, rule.prox).settle(ahead)
    return tree.add(x_bar, jax.vjp(settle, rule.x)[1](y_bar)[0])


def differentiable(
    rule: Rule, memory: PyTree, value: ValueFunction | None
) -> tuple[list[Any], Callable[..., Any]]:
    """The memory's floating leaves, and a step as (gradient, moving, y) ↦ ((y, moving), memory)."""
    moving, rebuild = split(memory)
    value = None if value is None else held_fixed(value)

    def function(gradient: PyTree, moving: list[Any], y: PyTree) -> tuple[tuple[Any, ...], PyTree]:
        y, memory = descend(rule, gradient, rebuild(moving), y, value)
        return (y, split(memory)[0]), memory

    return moving, function


def held_fixed(value: ValueFunction) -> ValueFunction:
    """The same value, without a derivative."""
    return lambda y: lax.stop_gradient(value(y))


def split(memory: PyTree) -> tuple[list[Any], Callable[[list[Any]], PyTree]]:
    """A rule's memory as its floating leaves, and how to put others in their place."""
    leaves, structure = jax.tree.flatten(memory)
    floating = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def rebuild(moving: list[Any]) -> PyTree:
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
