"""Several inner steps and their back-propagation, for every unrolled method.

Forward, from (y_0, m_0), with G_t the field at y_t on the t-th draw (∇_y g for ITD) and m_t the rule's
memory:

    (y_{t+1}, m_{t+1}) = rule(G_t, m_t, y_t)                          t = 0, …, N−1

Back, from the cotangent p of y_N, with J_t the rule's derivative at step t:

    (d, q, p) ← J_tᵀ (p, q),   x̄ ← x̄ + ∇²_xy g(x, y_t) d,   p ← p + ∇²_yy g(x, y_t) d          t = N−1, …, N−T

For gradient descent d = −αp, so p ← (I − α∇²_yy g)p. The recursion costs one Hessian and one cross product
per step, both from one linearization. T < N is truncated back-propagation. Only every `checkpoint_every`-th
point is stored. The others are computed again from it on the way back.

A model's state s_t is carried along, s_{t+1} = S(x, y_t, s_t), and differentiated through: its cotangent r
goes back with p and q. Everything after the loop sees s_{N−1}, as the last step did.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from optax import tree

from bilevel.batch import Batch, Draws, draws, with_state
from bilevel.checks import check_count
from bilevel.oracles import Curvature, Linearized, operations
from bilevel.problem import Problem
from bilevel.solvers.parts.inner import Carried, carried, carried_state, inner_rule, next_state
from bilevel.solvers.parts.trees import select, split
from bilevel.solvers.rules import Proximal, Rule, ValueFunction, descend
from bilevel.types import PyTree, Scalar


class Field(NamedTuple):
    """Direction of the inner loop, as functions of (x, y, t, batch)."""

    problem: Problem
    direction: Callable[..., tuple[PyTree, PyTree]]  # G_t, and ∇_y g, which is always reported
    linearize: Callable[..., Linearized]  # G_t with its products
    curvature: Callable[..., Curvature]  # its products, each in its own pass
    value: Callable[..., Scalar]  # the function with the gradient G_t
    # the rule at x, for a proximal map that depends on x
    rule_at: Callable[[Rule, PyTree], Rule] = lambda rule, x: rule


def inner_field(problem: Problem) -> Field:
    """Return the field ∇_y g, the same at every t."""

    def direction(x: PyTree, y: PyTree, t: Any, batch: Batch | None) -> tuple[PyTree, PyTree]:
        gradient = problem.oracles.inner_gradient(x, y, batch)
        return gradient, gradient

    linearize = lambda x, y, t, batch: problem.oracles.linearize(x, y, batch)
    curvature = lambda x, y, t, batch: problem.oracles.curvature(x, y, batch)
    value = lambda x, y, t, batch: problem.g(x, y, batch)
    rule_at = lambda rule, x: inner_rule(problem, rule, x)
    return Field(problem, direction, linearize, curvature, value, rule_at)


class Lengths(NamedTuple):
    """Number of steps, number of differentiated last steps, and distance of the stored points."""

    steps: int
    differentiated: int
    every: int


def lengths(inner_steps: int, truncate: int | None = None, checkpoint_every: int = 1) -> Lengths:
    """Return the lengths; raise if they do not fit together."""
    steps = check_count(inner_steps, "inner_steps")
    differentiated = steps if truncate is None else check_count(truncate, "truncate")
    if differentiated > steps:
        raise ValueError(
            f"truncate={truncate} asks to differentiate more steps than inner_steps={steps} takes: "
            f"pass truncate={steps} or less, or leave it out to differentiate them all"
        )
    return Lengths(steps, differentiated, check_count(checkpoint_every, "checkpoint_every"))


class Unrolled(NamedTuple):
    y: PyTree  # y_N
    memory: PyTree  # m_N
    gradient: PyTree  # ∇_y g at y_0
    pull_back: Callable[..., tuple[PyTree, Callable[[], PyTree]]]
    # (ȳ, s̄) ↦ (x̄, start): from the cotangents of y_N and s_{N−1} to the cotangent of x; start() gives the
    # cotangent of y_{N−T}. In a one-step loop only start() costs a Hessian product.
    repeat: Callable[[PyTree], tuple[PyTree, Batch | None]]  # x ↦ (y_N, last), from the same y_{N−T}, m and s
    last: Batch | None  # the last draw, with s_{N−1}
    model: Carried | None


def unroll(
    field: Field,
    rule: Rule,
    lengths: Lengths,
    x: PyTree,
    y: PyTree,
    memory: PyTree,
    batch: Batch | Draws | None,
) -> Unrolled:
    """Run the loop from (y, memory) at x, with its last steps differentiable."""
    steps, tracked, every = lengths.steps, lengths.differentiated - 1, lengths.every
    segments, tail = divmod(tracked, every) if every > 1 else (0, tracked)
    times = np.arange(steps - 1, dtype=np.int32)
    ends = [steps - 1 - tracked, steps - 1 - segments * every]
    discarded_times, tail_times, segment_times = np.split(times, ends)
    segment_times = segment_times.reshape(segments, every)
    plain, rule, drawn = rule, field.rule_at(rule, x), draws(batch)

    def value_at(t, batch):
        return lambda y: field.value(x, y, t, batch)

    def step(point, t):
        y, memory, state = point
        seen = with_state(drawn[t], state)
        direction, gradient = field.direction(x, y, t, seen)
        after = descend(rule, direction, memory, y, value_at(t, seen))
        return (*after, next_state(field.problem, x, y, seen, state)), gradient

    def visit(carry, t):  # a step that returns its starting point, and the first gradient of all
        point, first = carry
        after, gradient = step(point, t)
        return (after, select(t == 0, gradient, first)), point

    def discard(carry, times):
        return lax.scan(lambda carry, t: (visit(carry, t)[0], None), carry, times)[0]

    def back(cotangents, visited):  # through one step
        p, q, r, x_bar = cotangents
        (y, memory, state), t = visited
        seen = with_state(drawn[t], state)
        direction, both = linearized(field, x, y, t, seen, state)
        _, pull_rule, _ = update(rule, direction, memory, y, value_at(t, seen))
        x_bar = through_map(x_bar, rule, direction, memory, y, p)
        d, q, p = pull_rule((p, q))
        hessian, cross, r = both(d, r)
        return (tree.add(p, hessian), q, r, tree.add(x_bar, cross)), None

    def back_over(cotangents, segment):  # through `every` steps, computed again from their start
        start, times = segment
        _, points = lax.scan(lambda point, t: (step(point, t)[0], point), start, times)
        return lax.scan(back, cotangents, (points, times), reverse=True)

    begin = y, memory, carried_state(field.problem, batch) if steps > 1 else None
    carry, points, starts = (begin, tree.zeros_like(y)), None, None
    if discarded_times.size:
        carry = discard(carry, discarded_times)
    start, differentiated_times = carry[0], np.arange(steps - 1 - tracked, steps, dtype=np.int32)
    if tail:
        carry, points = lax.scan(visit, carry, tail_times)
    if segments:
        carry, starts = lax.scan(lambda carry, times: (discard(carry, times), carry[0]), carry, segment_times)

    (y_last, memory_last, state), first = carry
    seen = with_state(drawn[steps - 1], state)
    last = x, y_last, steps - 1, seen
    direction, gradient = field.direction(*last)
    (y, moving), pull_rule, memory = update(rule, direction, memory_last, y_last, value_at(steps - 1, seen))

    def pull_back(y_bar: PyTree, s_bar: Any = ()) -> tuple[PyTree, Callable[[], PyTree]]:
        d, q, p = pull_rule((y_bar, tree.zeros_like(moving)))
        x_bar = through_map(tree.zeros_like(x), rule, direction, memory_last, y_last, y_bar)
        if tracked == 0 and state is None:  # one step: each product costs one pass
            g = field.curvature(*last)
            return tree.add(x_bar, g.cross(d)), lambda: tree.add(p, g.hessian(d))
        _, both = linearized(field, *last, state)
        hessian, cross, r = both(d, tree.zeros_like(s_bar))  # nothing sees s_N
        cotangents = tree.add(p, hessian), q, tree.add(r, s_bar), tree.add(x_bar, cross)
        if segments:
            cotangents, _ = lax.scan(back_over, cotangents, (starts, segment_times), reverse=True)
        if tail:
            cotangents, _ = lax.scan(back, cotangents, (points, tail_times), reverse=True)
        p, _, _, x_bar = cotangents
        return x_bar, lambda: p

    model = carried(state, next_state(field.problem, x, y_last, seen, state))
    repeat = lambda x: follow(field, plain, differentiated_times, x, *start, batch)
    return Unrolled(y, memory, gradient if steps == 1 else first, pull_back, repeat, seen, model)


def follow(
    field: Field,
    rule: Rule,
    times: Any,
    x: PyTree,
    y: PyTree,
    memory: PyTree,
    state: PyTree,
    batch: Batch | Draws | None,
) -> tuple[PyTree, Batch | None]:
    """Return (y, last) after the steps at those times, as a function of x for rules that need f(x, y_N(x))."""
    rule, drawn = field.rule_at(rule, x), draws(batch)

    def step(point, t):
        y, memory, _, state = point
        seen = with_state(drawn[t], state)
        direction, _ = field.direction(x, y, t, seen)
        value = held_fixed(lambda y: field.value(x, y, t, seen))
        after = descend(rule, direction, memory, y, value)
        return (*after, state, next_state(field.problem, x, y, seen, state)), None

    y, _, state, _ = lax.scan(step, (y, memory, state, state), times)[0]
    return y, with_state(drawn[times[-1]], state)


def linearized(
    field: Field, x: PyTree, y: PyTree, t: Any, batch: Batch | None, state: PyTree
) -> tuple[PyTree, Callable[..., tuple[PyTree, PyTree, Any]]]:
    """Return G_t at this state, and (d, r) ↦ the cotangents of y, x and s_t; d, r belong to G_t and s_{t+1}."""
    if state is None:
        g = field.linearize(x, y, t, batch)
        return g.gradient, lambda d, r: (*g.both(d), r)
    moving, rebuild = split(state)

    def function(y: PyTree, x: PyTree, moving: list[Any]) -> tuple[PyTree, list[Any]]:
        seen = with_state(batch, state := rebuild(moving))
        return field.direction(x, y, t, seen)[0], split(next_state(field.problem, x, y, seen, state))[0]

    (direction, _), pull = jax.vjp(function, y, x, moving)
    return direction, lambda d, r: pull((d, r))


def state_gradient(
    problem: Problem, x: PyTree, y: PyTree, batch: Batch | None, model: Carried | None
) -> list[Any]:
    """Return the gradient of f(x, y) in the floating part of its model state; empty without one."""
    if model is None:
        return []
    moving, rebuild = split(model.seen)
    return jax.grad(lambda moving: problem.f(x, y, with_state(batch, rebuild(moving))))(moving)


def update(
    rule: Rule, gradient: PyTree, memory: PyTree, y: PyTree, value: ValueFunction | None
) -> tuple[tuple[Any, ...], Callable[..., Any], PyTree]:
    """Take one step of `rule`: ((y, moving), pull_back, memory), with `moving` the memory's floating leaves.

    `pull_back((p, q))` maps the cotangents of (y, moving) to the cotangents of (gradient, moving, y) before
    the step. Counters and keys have no derivative. The value that some rules ask for is a constant.
    """
    moving, rebuild = split(memory)
    value = None if value is None else held_fixed(value)

    def function(gradient: PyTree, moving: list[Any], y: PyTree) -> tuple[tuple[Any, ...], PyTree]:
        y, memory = descend(rule, gradient, rebuild(moving), y, value)
        return (y, split(memory)[0]), memory

    out, pull_back, memory = jax.vjp(function, gradient, moving, y, has_aux=True)

    def pull(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            return pull_back(cotangents)
        except ValueError as error:
            if "while" not in operations(jax.make_jaxpr(function)(gradient, moving, y)):
                raise
            raise TypeError(
                "this method differentiates through the inner rule, and this rule searches along a line, which has no "
                "derivative: pass a rule without (such as optax.lbfgs(..., linesearch=None)), or use bl.aid"
            ) from error

    return out, pull, memory


def through_map(
    x_bar: PyTree, rule: Rule, gradient: PyTree, memory: PyTree, y: PyTree, y_bar: PyTree
) -> PyTree:
    """Add to x̄ the cotangent of the new y through a proximal map that depends on x."""
    if not isinstance(rule, Proximal):
        return x_bar
    ahead, _ = rule.rule.update(gradient, memory, y)
    settle = lambda x: Proximal(rule.rule, x, rule.prox).settle(ahead)
    return tree.add(x_bar, jax.vjp(settle, rule.x)[1](y_bar)[0])


def held_fixed(value: ValueFunction) -> ValueFunction:
    """Return the same function without a derivative."""
    return lambda y: lax.stop_gradient(value(y))
