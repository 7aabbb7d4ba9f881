"""Fixed points of rules that do not state them, found by trials.

A trial gives a rule gradients γ_1, γ_2, … while y is held fixed. It compares the updates Δ_t(γ, y):

* decays:    Δ(0, y) depends on y.
* frozen:    Δ(γ, y) does not depend on γ, entry by entry.
* coupled:   Δ_t(γ, y) = Δ_t(γ + cy, 0) for some c and every y. The decay comes before any memory or rescaling
             (`chain(add_decayed_weights(c), ...)`). The fixed point is where ∇_y g + cy = 0.
* a map:     Δ_t(γ, y) acts entry by entry and does not depend on earlier gradients (clipped or thresholded
             steps). y = U(x, y) can be differentiated at the current point.
* held:      Δ_t(γ, y) = Δ_t(γ, 0) − d_t y: decay after rescaling, as in `adamw`. The fixed point depends on
             the memory. `bl.fixed_preconditioner` holds that memory fixed (see `preconditioner`).

A trial cannot find the fixed point of other rules that depend on y. Schedules are evaluated far ahead. If the
rate is zero there, they are evaluated at the latest step at which every part still moves well. The trials use
small and large y, so that y meets bounds.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.problem import Problem
from bilevel.solvers.fixed_points.preconditioner import FixedPreconditioner, how_held
from bilevel.solvers.fixed_points.schedules import NO_COMMON_TIME, candidates
from bilevel.solvers.fixed_points.trial import SIZE, Case, Outcome, Shapes, Trial, smaller_shapes
from bilevel.solvers.optax_rules import Transformation, fix_numbers
from bilevel.solvers.rules import FixedPoint, Rule
from bilevel.types import PyTree

SCALES = (1.0, -30.0, 1e4)  # of y
LARGEST = 2.0**10  # decay
DIGITS = 80  # bits of a decay that bisection finds


def classify(problem: Problem, rule: Rule, y: PyTree) -> FixedPoint:
    """Return the fixed point of a rule on trees like `y`, kept with the problem; raise if it is unknown."""
    if holds := isinstance(rule, FixedPreconditioner):
        rule = rule.rule
    if isinstance(rule, Transformation) and rule.scale is not None:
        rule = replace(rule, scale=None)  # the fixed point does not depend on it
    rule = fix_numbers([rule])[0]
    settled = not jax.tree.leaves(rule)
    if isinstance(rule, Transformation):
        rule = rule.as_made()
        if not holds and rule.decays_after_rescaling():
            raise ValueError(_refusal(settled, holds, could_be_held=True))
    leaves, structure = jax.tree.flatten(rule)
    like, tree_of_y = jax.tree.flatten(jax.eval_shape(lambda: y))
    shapes = tuple((each.shape, jnp.dtype(each.dtype)) for each in like)
    key = structure, tree_of_y, shapes, settled, holds
    if leaves:  # numbers of a user's rule
        return _try(leaves, *key)
    return problem.kept("rules", key, structure.unflatten([]), lambda: _try([], *key))


def _try(
    leaves: list[Any], structure: Any, tree_of_y: Any, shapes: Shapes, settled: bool, holds: bool
) -> FixedPoint:
    # A traced number has no value yet. The kind of the rule does not depend on it.
    rule = structure.unflatten([0.1 if isinstance(leaf, Tracer) else leaf for leaf in leaves])
    for each in (smaller_shapes(rule, tree_of_y, shapes), shapes):
        found = _judge(Trial(rule, tree_of_y, each), settled, holds)
        if each == shapes or all(np.ndim(a) == 0 for a in jax.tree.leaves((found.active, found.decay))):
            return found
    raise AssertionError


def _judge(trial: Trial, settled: bool, holds: bool) -> FixedPoint:
    seen = candidates(trial)
    looks = [_Look(trial, time) for time in seen.times]
    outcomes = trial.run([case for look in looks for case in look.cases])
    n = len(_Look.KINDS)
    for i, look in enumerate(looks):
        look.read(outcomes[n * i : n * (i + 1)])
    if not np.all(np.isfinite(looks[-1].reach)):
        raise ValueError(
            f"the inner rule gives NaN or infinite updates of y in {trial.shapes[0][1]}, on gradients of size {SIZE}: "
            "keep y in float32, or give the rule a larger eps (optax.adam's 1e-8 is zero in float16)"
        )
    look = _where_all_move(trial, looks, seen.moves)
    tree = lambda vector: trial.structure.unflatten(map(_one_if_equal, trial.leaves(vector)))
    active = tree(look.active)
    if not look.decays:
        _check_not_blind(look)
        free = all(np.all(leaf) for leaf in jax.tree.leaves(active))
        return FixedPoint(active, jax.tree.map(lambda _: 0.0, active), free)
    decay, held = _decay_by_ratio(trial, look.time) if settled else None, None
    if decay is None:
        held = how_held(trial, look.time, look.active)
    if decay is None and held is None and settled:
        decay = _decay_by_bisection(trial, look.time)
    if decay is not None:
        _check_not_blind(look)
        return FixedPoint(active, tree(decay), False)
    if _is_a_map(trial, look):
        return FixedPoint(active, None, False)
    if holds and held is not None:
        return FixedPoint(active, None, False, held)
    raise ValueError(_refusal(settled, holds, held is not None))


def _refusal(settled: bool, holds: bool, could_be_held: bool) -> str:
    if holds:
        return (
            "bl.fixed_preconditioner was given a rule that is not of the form y − s·P(m + c·y) with a memory P of the "
            "size of the gradients, such as optax.adamw: pass one that is, put the decay into g, as 0.5 * c * ‖y‖², or "
            "differentiate the steps themselves with bl.itd or bl.solvers.rtho"
        )
    wrap = (
        "hold its preconditioner fixed in the adjoint system, which is an approximation, as "
        "bl.fixed_preconditioner(optax.adamw(...)); "
    )
    if not settled:
        return (
            "the inner rule decays y and its numbers may change from run to run, so that the decay is not known: "
            f"{wrap if could_be_held else ''}leave optax.inject_hyperparams out, or put the decay into g, as 0.5 * c * "
            "‖y‖²"
        )
    return (
        "the inner rule's update depends on y itself, after averaging or rescaling the gradient (as optax.adamw's "
        "weight decay does), so where it comes to rest depends on its memory or cannot be told from a trial, and no "
        f"implicit method can differentiate that point: {wrap if could_be_held else ''}put the decay into g, as 0.5 * "
        "c * ‖y‖², or before everything else, as optax.chain(optax.add_decayed_weights(c), optax.adam(...)); for a set "
        "use bl.projected; or differentiate the steps themselves with bl.itd or bl.solvers.rtho"
    )


class _Look:
    """Properties of the rule at one time: its decay, its active entries and partly active gradients."""

    # One row per case: a scale of y, and the kind of γ: 0 zero, 1 varied, 2 level, 3 without a mean.
    KINDS = (*((scale, 0) for scale in SCALES), (0.0, 0), (1.0, 1), (1.0, 2), (1.0, 3))

    def __init__(self, trial: Trial, time: int):
        self.trial, self.time, y = trial, time, trial.draw(1)
        a, b = trial.draw(2), trial.draw(3)
        t = np.arange(trial.steps)
        # Repeat the same gradient half of the time: some rules wait for a sign to last.
        wobble = np.where(t < trial.steps // 2, np.cos(2.0 * t), 1.0)
        means = trial.spread([np.mean(leaf) if leaf.size else 0 for leaf in trial.leaves(a)])
        gradients = [
            trial.repeat(0 * a),
            trial.repeat(a, wobble) + trial.repeat(b, 0.3),
            trial.repeat(np.full_like(a, SIZE)),
            trial.repeat(a - means),
        ]
        start = trial.start_at(time)
        self.cases = [Case(trial.rounded(scale * y), gradients[kind], start) for scale, kind in self.KINDS]

    def read(self, outcomes: list[Outcome]) -> None:
        *still, nothing, varied, level, centered = [outcome.updates for outcome in outcomes]
        trial = self.trial
        self.decays = not all(trial.is_close(one, nothing) for one in still)
        apart = [np.max(np.abs(one - still[0]), axis=0) for one in (varied, level, centered)]
        self.reach, *others = (trial.largest(one) for one in apart)
        self.active = apart[0] > 1e-5 * trial.spread(self.reach)
        seen = np.all([other > 1e-5 * self.reach for other in others], axis=0)
        several = np.array([np.prod(shape) > 1 for shape, _ in trial.shapes])
        self.blind = bool(np.any((self.reach > 0) & several & ~seen))


def _where_all_move(trial: Trial, looks: list[_Look], moves: np.ndarray) -> _Look:
    """Return the first look at which all moving entries move: a step size may begin or end at zero."""
    # A schedule that ends at zero may leave a step size as small as its rounding.
    largest = np.nanmax([look.reach for look in looks], axis=0)
    for look in looks:
        look.active &= trial.spread(look.reach > 1e-6 * largest)
    ever = np.any([look.active for look in looks], axis=0)
    for look in looks:
        some = trial.largest(look.active) > 0
        if np.array_equal(look.active, ever) and np.all(some | ~moves):
            return look
    raise ValueError(NO_COMMON_TIME)


def _check_not_blind(look: _Look) -> None:
    if look.blind:
        raise ValueError(
            "the inner rule follows a part of the gradient only, such as its deviation from the mean "
            "(optax.centralize), and so rests where that part is zero, which implicit methods do not follow: leave "
            "that out, or differentiate the steps themselves with bl.itd or bl.solvers.rtho"
        )


def _decay_by_ratio(trial: Trial, time: int) -> np.ndarray | None:
    """Return the decay Δ(0, y)/Δ(y, 0), or None if the rule is not coupled with this value."""
    y, start = trial.draw(1), trial.start_at(time)
    cases = [Case(y, trial.repeat(0 * y), start), Case(0 * y, trial.repeat(y), start)]
    pull, plain = (outcome.updates[0] for outcome in trial.run(cases))
    c = np.where(plain == 0, 0, pull / np.where(plain == 0, 1, plain))
    return c if _is_coupled(trial, c, time) else None


def _decay_by_bisection(trial: Trial, time: int) -> np.ndarray | None:
    """Return the decay by bisection, for rules that see only the signs of gradients."""
    short, y = trial.of_one_step(), trial.draw(1)
    low, high = np.zeros(trial.size), np.full(trial.size, LARGEST)
    between = np.arange(1, short.together + 1) / (short.together + 1)
    start = short.start_at(time)
    pull = short.run([Case(y, short.repeat(0 * y), start)])[0].updates[0]
    for _ in range(int(DIGITS / np.log2(short.together + 1))):
        tried = [(1 - w) * low + w * high for w in between]
        outcomes = short.run([Case(y, short.repeat(-c * y), start) for c in tried])
        # At γ = −cy a decay that is too large still pulls y toward zero: the update is opposite to y.
        below = np.sum([outcome.updates[0] * y < 0 for outcome in outcomes], axis=0)
        ends = np.stack([low, *tried, high])
        low, high = (np.take_along_axis(ends, below[None] + k, 0)[0] for k in (0, 1))
    c = np.where(pull != 0, (low + high) / 2, 0)
    return c if _is_coupled(trial, c, time) else None


def _is_coupled(trial: Trial, c: np.ndarray, time: int) -> bool:
    """Return whether c is the decay, for gradients as large as y and as small as cy, and for several y."""
    if not np.isfinite(largest := np.max(np.abs(c), initial=0)):
        return False
    drawn, few, start = trial.draw(2), min(trial.steps, 6), trial.start_at(time)
    turning = np.cos(1.0 + 2.0 * np.arange(trial.steps))
    roots = trial.spread([np.sqrt(np.prod(shape)) for shape, _ in trial.shapes])
    cases = []
    for scale in SCALES:
        # Gradients of the same size, but with cy below the limit of clipping by norm.
        by = np.sign(scale) * min(abs(scale), 10 / max(largest, 1e-3))
        for y in (by * trial.draw(1), by * trial.draw(3)):
            decay = trial.rounded(c * y)
            for gradient in (drawn, 20 * roots * drawn * decay):
                at = trial.repeat(gradient, turning)
                triple = (0 * at, y), (at, y), (at + decay, 0 * y)
                cases += [Case(point, gradients, start) for gradients, point in triple]
    found = [outcome.updates[:few] for outcome in trial.run(cases)]

    def is_same(pull: np.ndarray, left: np.ndarray, right: np.ndarray) -> bool:
        slack = 1e-3 * np.abs(pull) + 32 * trial.eps * np.maximum(np.abs(left), np.abs(right))
        return bool(np.all(np.abs(left - right) <= slack))

    return all(map(is_same, found[::3], found[1::3], found[2::3]))


def _is_a_map(trial: Trial, look: _Look) -> bool:
    """Return whether an update acts entry by entry and does not depend on earlier gradients."""
    y, other, gradient, last = trial.draw(1), trial.draw(3), trial.draw(2), 2
    opposite = -1e4 * gradient  # enough to turn the sign of an average
    before = (np.arange(trial.steps) < last)[:, None]

    def case(first: np.ndarray, then: np.ndarray, y: np.ndarray) -> Case:
        gradients = np.where(before, trial.repeat(first), trial.repeat(then))
        return Case(y, gradients, trial.start_at(look.time))

    mixes = [partial(trial.mixed, parity) for parity in (0, 1)]
    cases = [case(gradient, gradient, y), case(opposite, gradient, y)]
    cases += [case(gradient, mix(gradient, opposite), mix(y, other)) for mix in mixes]
    update, turned, *halves = [each.updates[last] for each in trial.run(cases)]
    moved = trial.largest(update != 0) | ~trial.largest(look.active)
    return (
        bool(np.all(moved))  # otherwise a schedule ends within the trial, and the comparison shows nothing
        and trial.is_close(update, turned)
        and all(trial.is_close(mix(half, update), update) for mix, half in zip(mixes, halves, strict=True))
    )


def _one_if_equal(leaf: Any) -> Any:
    """Return one entry for a leaf of entries equal up to rounding: constants in a program cost memory."""
    return np.ravel(leaf)[0] if leaf.size and np.allclose(leaf, leaf.flat[0], rtol=1e-5, atol=0) else leaf
