"""Rules that decay y after rescaling the gradient (AdamW), with the scale held fixed in the adjoint system.

Such a rule moves y by −s(P m + c y). m averages the gradients, P is a positive diagonal made of their
squares, and s is the rate. `fixed_preconditioner` states its fixed point and the adjoint system.

The update of the rule gives P. Averages of gradients change sign with the gradients. They are set to their
limit under a constant gradient. Other memory (squares, counters) does not change sign and keeps its value.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from optax import tree

from bilevel.solvers.fixed_points.schedules import FAR
from bilevel.solvers.fixed_points.trial import Case, Trial
from bilevel.solvers.optax_rules import Transformation
from bilevel.solvers.rules import Around, FixedPoint, Settled, as_rule
from bilevel.types import PyTree

HUGE = 2.0**40  # scale of the updates, so that they are not lost in the digits of y


class Held(NamedTuple):
    """Roles of the leaves of a memory."""

    odd: tuple[bool, ...]  # changes its sign with the gradients
    moving: tuple[int | None, ...]  # for a counter that stops y: a step at which the rule moves it


class FixedPreconditioner(Around):
    """Rule whose preconditioner implicit methods hold fixed."""

    def fixed_point(self, point: PyTree) -> FixedPoint | None:
        return self.rule.fixed_point(point)


def fixed_preconditioner(rule: Any) -> FixedPreconditioner:
    """Return an inner rule such as AdamW, for `bl.aid`, `bl.soba`, `bl.hoag` and `bl.stocbio`.

        rule = bl.fixed_preconditioner(optax.adamw(schedule, weight_decay=0.1))
        bl.aid(problem, inner=rule, adjoint=0.1, outer=0.1)

    It takes the same steps on y as `rule`. AdamW's steps are −s(m/(√v̂ + ε) + cy). They converge where
    P∇_y g + cy = 0, with the preconditioner P = 1/(√v̂ + ε). The adjoint system holds P fixed at its current
    value:

        (∇²_yy g + diag(c/P)) v = ∇_y f,        ∇Φ ≈ ∇_x f − ∇²_xy g·v

    This is an approximation: it leaves out how P changes with x and y. It is exact for a rule such as
    `optax.adam`, whose fixed point does not depend on P.

    Args:
        rule: an optax transformation that decays y after rescaling the gradient. It may clip the gradient
            before, decay only parts of y, freeze parts, and have schedules.
    """
    made = as_rule(rule, "inner")
    if isinstance(made, Settled):
        raise TypeError(
            "bl.fixed_preconditioner was given a projected rule: write bl.projected(bl.fixed_preconditioner(...), "
            "project)"
        )
    return made if isinstance(made, FixedPreconditioner) else FixedPreconditioner(made)


def shift(rule: FixedPreconditioner, held: Held, memory: PyTree, y: PyTree) -> PyTree:
    """Return c/P, entry by entry, with the P of `memory`; zero where P is not known yet."""
    inner = rule.rule
    if isinstance(inner, Transformation):
        inner = replace(inner, scale=HUGE)
    leaves, structure = jax.tree.flatten(memory)
    odd = [leaf for leaf, flips in zip(leaves, held.odd, strict=True) if flips]

    def step(gradient, odd, y):
        some = iter(odd)
        now = [
            next(some) if flips else leaf if time is None else jnp.full_like(leaf, time)
            for leaf, flips, time in zip(leaves, *held, strict=True)
        ]
        after, memory = inner.update(gradient, structure.unflatten(now), y)
        kept = [leaf for leaf, flips in zip(jax.tree.leaves(memory), held.odd, strict=True) if flips]
        return tree.sub(y, after), kept

    zero, ones = tree.zeros_like(y), tree.ones_like(y)
    no_memory, all_memory = tree.zeros_like(odd), tree.ones_like(odd)
    _, tangent = jax.linearize(step, zero, no_memory, y)
    per_gradient = tangent(ones, no_memory, zero)[1]
    kept = tangent(zero, all_memory, zero)[1]
    settled = jax.tree.map(lambda b, a: b / (1 - a), per_gradient, kept)
    gain, decay = tangent(ones, settled, zero)[0], tangent(zero, no_memory, ones)[0]

    def ratio(a, d):
        known = jnp.isfinite(a) & (a > 0)
        return jnp.where(known, d / jnp.where(known, a, 1), 0)

    return jax.tree.map(ratio, gain, decay)


def how_held(trial: Trial, time: int, active: np.ndarray) -> Held | None:
    """Return the roles of the rule's memory, or None if its updates are not −s(P m + cy)."""
    y, other, drawn = trial.draw(1), trial.draw(3), trial.draw(2)
    rng, end, t = np.random.default_rng(0), max(1, trial.steps // 12), np.arange(trial.steps)
    noise = np.where(t >= trial.steps - 2 * end, 0.0, rng.normal(size=trial.steps))
    gradients, eps = trial.repeat(drawn, noise), max(trial.eps, default=0.0)
    pinned = _moving(trial, time, active)
    start = np.where(pinned, -1, 0)[None].repeat(trial.steps, axis=0)  # keep a schedule at its time
    start[0] = time
    nudge = lambda by: gradients + trial.repeat(drawn, by * (t >= trial.steps - end))
    points = [*(trial.rounded(by * y) for by in (1.0, -30.0, 1e3)), other]
    cases = [Case(0 * y, each, start) for each in (gradients, -gradients, nudge(0.05), nudge(0.1))]
    cases += [Case(point, each, start) for point in points for each in (gradients, 0 * gradients)]
    plain, opposite, nudged, twice, *pairs = trial.run(cases)

    # Δ(γ, y) = Δ(γ, 0) − d y, with one d for every y, and a memory that does not depend on y.
    slopes = []
    for point, both, alone in zip(points, pairs[::2], pairs[1::2], strict=True):
        p, a, b = plain.updates, both.updates, alone.updates
        if not np.all(np.abs(p + b - a) <= 64 * trial.eps * (np.abs(p) + np.abs(a) + np.abs(b))):
            return None
        if not all(_same(*each, eps) for each in zip(plain.memory, both.memory, strict=True)):
            return None
        slopes.append(b / point)
    if not all(np.all(np.abs(a - slopes[0]) <= 1e3 * trial.eps * np.abs(slopes[0])) for a in slopes[1:]):
        return None

    # Every step is proportional to a small gradient, and against its direction.
    one, two = ((each.updates - plain.updates)[-end:] * np.sign(drawn) for each in (nudged, twice))
    if not np.all(~active | ((one < 0) & (np.abs(two - 2 * one) <= 0.2 * np.abs(two)))):
        return None

    odd = []
    for a, b in zip(plain.memory, opposite.memory, strict=True):
        flips = bool(np.any(a)) and _same(a, -b, eps)
        if not flips and not _same(a, b, eps):
            return None
        odd.append(flips)
    if sum(a.size for a, flips in zip(plain.memory, odd, strict=True) if flips) > trial.size:
        return None  # averages of averages
    moving = dict(zip(trial.counters, pinned, strict=True))
    return Held(tuple(odd), tuple(time if moving.get(i) else None for i in range(len(odd))))


def _moving(trial: Trial, time: int, active: np.ndarray) -> np.ndarray:
    """Return which counters stop y through a schedule that is zero at the start or at the end."""
    gradient, y, n = trial.draw(2), trial.draw(1), len(trial.counters)

    def moves(aheads: list[np.ndarray]) -> list[np.ndarray]:
        cases = []
        for ahead in aheads:
            jumps = np.zeros((trial.steps, n), int)
            jumps[0] = ahead
            cases += [Case(y, trial.repeat(by * gradient), jumps) for by in (1.0, 0.0)]
        found = [outcome.updates[0] for outcome in trial.run(cases)]
        return [trial.largest(p != q) for p, q in zip(found[::2], found[1::2], strict=True)]

    pinned = np.zeros(n, bool)
    for dead in (each for each in (FAR, 0) if each != time):
        base, *single = moves([np.full(n, dead), *np.where(np.eye(n, dtype=bool), time, dead)])
        stopped = trial.largest(active) & ~base
        pinned |= np.array([np.any(stopped & found) for found in single], bool)
    return pinned


def _same(one: Any, other: Any, eps: float) -> bool:
    return bool(np.all(np.abs(one - other) <= 64 * eps * np.maximum(np.abs(one), np.abs(other))))
