"""What a rule does at rest, found by trying it: optax rules are closures, and closures do not say what they are.

A rule is fed gradients γ_1, γ_2, … while y is held fixed, and its updates Δ_t(γ, y) are compared:

* decays:    Δ(0, y) depends on y.
* frozen:    Δ(γ, y) does not depend on γ, entry by entry.
* coupled:   Δ_t(γ, y) = Δ_t(γ + cy, 0) for some c and every y: the decay comes before anything that remembers or
             rescales (`chain(add_decayed_weights(c), ...)`), so the rule rests where ∇_y g + cy = 0.
* a map:     Δ_t(γ, y) does not depend on earlier gradients and acts entry by entry, so that y = U(x, y) can be
             differentiated as it stands (clipped or thresholded steps).
* held:      Δ_t(γ, y) = Δ_t(γ, 0) − d_t y: decay after rescaling, as in `adamw`. Where the rule rests depends on its
             memory; `bl.fixed_preconditioner` holds that memory fixed (see `preconditioner`).

What depends on y and is none of these has no rest point that could be known from a trial. Schedules are taken where y
comes to rest: far ahead, or, where the rate is zero by then, at the latest step at which every part still moves well.
y is tried small and large, so that bounds are met.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.problem import Problem
from bilevel.solvers.fixed_points.preconditioner import FixedPreconditioner, Held, how_held
from bilevel.solvers.fixed_points.schedules import candidates
from bilevel.solvers.fixed_points.stand_ins import stand_ins
from bilevel.solvers.fixed_points.trial import SIZE, Case, Leaves, Outcome, Shapes, Trial
from bilevel.solvers.rule_closures import Closures
from bilevel.solvers.rules import Descent, Rule, Transformation, fix_numbers
from bilevel.types import PyTree

SCALES = (1.0, -30.0, 1e4)  # of y
LARGEST = 2.0**10  # decay
DIGITS = 80  # to which a decay is found, in bits of that


class Behavior(NamedTuple):
    """How a rule behaves on trees of one shape."""

    active: PyTree  # where the gradient has any influence; a single bool for a leaf of equal entries
    decay: PyTree | None  # c of a coupled rule; None for a map that has to be differentiated where it is used
    plain: bool  # it rests at the zeros of the gradient, every entry free
    held: Held | None = None  # of a rule whose preconditioner is held fixed


PLAIN = Behavior(True, 0.0, True)


def behavior(problem: Problem, rule: Rule, y: PyTree) -> Behavior:
    """How `rule` behaves on trees like `y`; refuses a rule without a point of rest. Kept with the problem."""
    holds = isinstance(rule, FixedPreconditioner)
    if isinstance(rule, FixedPreconditioner):
        rule = rule.rule
    if isinstance(rule, Descent):
        return PLAIN
    if isinstance(rule, Transformation) and rule.scale is not None:
        rule = replace(rule, scale=None)  # where it rests does not depend on it
    rule = fix_numbers([rule])[0]
    settled = not jax.tree.leaves(rule)
    if isinstance(rule, Transformation):  # with the numbers it was made with: others may be traced
        made_with = Closures(rule.closures.value, rule.closures.numbers | rule.closures.fixed)
        rule = Transformation(made_with, {})
    leaves, structure = jax.tree.flatten(rule)
    like, tree_of_y = jax.tree.flatten(jax.eval_shape(lambda: y))
    shapes = tuple((each.shape, jnp.dtype(each.dtype)) for each in like)
    key = structure, tree_of_y, shapes, settled, holds
    if leaves:  # numbers of a rule of one's own
        return _try(leaves, *key)
    return problem.kept("rules", key, structure.unflatten([]), lambda: _try([], *key))


def _try(
    leaves: list[Any], structure: Any, tree_of_y: Any, shapes: Shapes, settled: bool, holds: bool
) -> Behavior:
    # A number that is being traced has no value yet. Which kind of rule it belongs to does not depend on it.
    rule = structure.unflatten([0.1 if isinstance(leaf, Tracer) else leaf for leaf in leaves])
    for each in (stand_ins(rule, tree_of_y, shapes), shapes):
        found = _judge(Trial(rule, tree_of_y, each), settled, holds)
        if each == shapes or all(np.ndim(a) == 0 for a in jax.tree.leaves((found.active, found.decay))):
            return found
    raise AssertionError


def _judge(trial: Trial, settled: bool, holds: bool) -> Behavior:
    seen = candidates(trial)
    looks = [_Look(trial, time) for time in seen.times]
    outcomes = trial.run([case for look in looks for case in look.cases])
    n = len(_Look.KINDS)
    for i, look in enumerate(looks):
        look.read(outcomes[n * i : n * (i + 1)])
    if not all(np.isfinite(reach) for look in looks[-1:] for reach in look.reach):
        raise ValueError(
            f"the inner rule gives NaN or infinite updates of y in {trial.shapes[0][1]}, on gradients of size {SIZE}: "
            "keep y in float32, or give the rule a larger eps (optax.adam's 1e-8 is zero in float16)"
        )
    look = _where_all_move(looks, seen.move)
    tree = trial.structure.unflatten
    active = tree([_one_if_equal(leaf) for leaf in look.active])
    if not look.decays:
        _refuse_blind(look)
        free = all(np.all(leaf) for leaf in jax.tree.leaves(active))
        return Behavior(active, jax.tree.map(lambda _: 0.0, active), free)
    decay, held = _proportion(trial, look.time) if settled else None, None
    if decay is None:
        held = how_held(trial, look.time, look.active)
    if (
        decay is None and held is None and settled
    ):  # an update that is a sum, but not in proportion, is not coupled
        decay = _bisection(trial, look.time)
    if decay is not None:
        _refuse_blind(look)
        return Behavior(active, tree([_one_if_equal(leaf) for leaf in decay]), False)
    if _is_a_map(trial, look):
        return Behavior(active, None, False)
    if holds and held is not None:
        return Behavior(active, None, False, held)
    raise ValueError(_refusal(settled, holds, held is not None))


def _refusal(settled: bool, holds: bool, could_be_held: bool) -> str:
    if holds:
        return (
            "bl.fixed_preconditioner was given a rule that is not of the form y − s·P(m + c·y) with a memory P of the "
            "size of the gradients, such as optax.adamw: pass one that is, put the decay into g, as 0.5 * c * ‖y‖², or "
            "differentiate the steps themselves with bl.itd or bl.rtho"
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
        "use bl.projected; or differentiate the steps themselves with bl.itd or bl.rtho"
    )


class _Look:
    """The rule at one time: whether it decays y, where γ has influence, and in which leaves only a part of γ has."""

    # A scale of y, and what γ is: 0 nothing, 1 varied, 2 level, 3 without a mean.
    KINDS = (*((scale, 0) for scale in SCALES), (0.0, 0), (1.0, 1), (1.0, 2), (1.0, 3))

    def __init__(self, trial: Trial, time: int):
        self.time, y = time, trial.draw(1)
        a, b = trial.draw(2), trial.draw(3)
        t = np.arange(trial.steps)
        # Half of the time the same gradient again and again: some rules wait for a sign to last.
        wobble = np.where(t < trial.steps // 2, np.cos(2.0 * t), 1.0)
        varied = [p + q for p, q in zip(trial.repeat(a, wobble), trial.repeat(b, 0.3), strict=True)]
        gradients = [
            trial.repeat(a, 0.0),
            [p.astype(q.dtype) for p, q in zip(varied, a, strict=True)],
            trial.repeat([np.full_like(p, SIZE) for p in a]),
            trial.repeat([(p - np.mean(p)).astype(p.dtype) if p.size else p for p in a]),
        ]
        self.cases = [
            Case(scaled(y, scale), gradients[kind], trial.start_at(time)) for scale, kind in self.KINDS
        ]
        self.eps = [float(jnp.finfo(dtype).eps) for _, dtype in trial.shapes]

    def read(self, outcomes: list[Outcome]) -> None:
        *still, nothing, varied, level, centerd = [outcome.updates for outcome in outcomes]
        self.decays = not all(close(one, nothing, self.eps) for one in still)
        apart = [
            [np.max(np.abs(p - q), axis=0, initial=0) for p, q in zip(one, still[0], strict=True)]
            for one in (varied, level, centerd)
        ]
        most = [[np.max(leaf, initial=0) for leaf in one] for one in apart]
        self.reach = most[0]
        self.active = [leaf > 1e-5 * m for leaf, m in zip(apart[0], most[0], strict=True)]
        self.blind = any(
            v > 0 and leaf.size > 1 and not (a > 1e-5 * v and b > 1e-5 * v)
            for leaf, v, a, b in zip(self.active, *most, strict=True)
        )


def _where_all_move(looks: list[_Look], move: list[bool]) -> _Look:
    """The first look at which every entry moves that ever does: a step size may begin at zero, or end there."""
    # What is left of a step size that a schedule has taken to zero may be its rounding.
    largest = [np.nanmax([look.reach[i] for look in looks]) for i in range(len(move))]
    for look in looks:
        look.active = [
            leaf & bool(reach > 1e-6 * most)
            for leaf, reach, most in zip(look.active, look.reach, largest, strict=True)
        ]
    ever = [np.any([look.active[i] for look in looks], axis=0) for i in range(len(move))]
    for look in looks:
        if all(
            np.array_equal(a, e) and (a.any() or not m)
            for a, e, m in zip(look.active, ever, move, strict=True)
        ):
            return look
    raise ValueError(
        "the inner rule moves parts of y only at the start and others only later, so that there is no one point where "
        "it rests: let the schedules of all parts overlap, or differentiate the steps with bl.itd or bl.rtho"
    )


def _refuse_blind(look: _Look) -> None:
    if look.blind:
        raise ValueError(
            "the inner rule follows a part of the gradient only, such as its deviation from the mean "
            "(optax.centralize), and so rests where that part is zero, which implicit methods do not follow: leave "
            "that out, or differentiate the steps themselves with bl.itd or bl.rtho"
        )


def _proportion(trial: Trial, time: int) -> Leaves | None:
    """The c with Δ_t(γ, y) = Δ_t(γ + cy, 0), as Δ(0, y)/Δ(y, 0); None if that is not it."""
    y, nothing = trial.draw(1), scaled(trial.draw(1), 0.0)
    cases = [Case(b, trial.repeat(a), trial.start_at(time)) for a, b in ((nothing, y), (y, nothing))]
    pull, plain = ([leaf[0] for leaf in outcome.updates] for outcome in trial.run(cases))
    c = [np.where(q == 0, 0, p / np.where(q == 0, 1, q)) for p, q in zip(pull, plain, strict=True)]
    return c if _is_coupled(trial, c, time) else None


def _bisection(trial: Trial, time: int) -> Leaves | None:
    """The same c by dividing intervals, for rules that see the signs of gradients only."""
    short, y = trial.of_one_step(), trial.draw(1)
    low, high = [np.zeros(a.shape) for a in y], [np.full(a.shape, LARGEST) for a in y]
    between = np.arange(1, short.together + 1) / (short.together + 1)
    start = short.start_at(time)
    pull = short.run([Case(y, short.repeat(scaled(y, 0.0)), start)])[0].updates
    for _ in range(int(DIGITS / np.log2(short.together + 1))):
        tried = [[(1 - w) * p + w * q for p, q in zip(low, high, strict=True)] for w in between]
        gradients = [[(-c * a).astype(a.dtype) for c, a in zip(cs, y, strict=True)] for cs in tried]
        updates = [found.updates for found in short.run([Case(y, short.repeat(g), start) for g in gradients])]
        for i, a in enumerate(y):
            # At γ = −cy too large a decay still pulls y toward zero: the update is opposite to y.
            below = np.sum([update[i][0] * a.astype(float) < 0 for update in updates], axis=0)
            ends = np.stack([low[i], *(cs[i] for cs in tried), high[i]])
            low[i], high[i] = (np.take_along_axis(ends, below[None] + k, 0)[0] for k in (0, 1))
    c = [np.where(d[0] != 0, (p + q) / 2, 0) for d, p, q in zip(pull, low, high, strict=True)]
    return c if _is_coupled(trial, c, time) else None


def _is_coupled(trial: Trial, c: Leaves, time: int) -> bool:
    """Whether Δ_t(γ, y) = Δ_t(γ + cy, 0), for gradients as large as y and as small as cy, and for several y."""
    drawn, few = trial.draw(2), min(trial.steps, 6)
    turning = np.cos(1.0 + 2.0 * np.arange(trial.steps))
    largest = max(np.max(np.abs(leaf), initial=0) for leaf in c)
    if not np.isfinite(largest):
        return False
    cases = []
    for scale in SCALES:
        # As large as that, but with cy below what clipping by norm lets through.
        by = np.sign(scale) * min(abs(scale), 10 / max(largest, 1e-3))
        for y in (scaled(trial.draw(1), by), scaled(trial.draw(3), by)):
            decay = [(p * q).astype(q.dtype) for p, q in zip(c, y, strict=True)]
            small = [
                (20 * np.sqrt(p.size) * p.astype(float) * q).astype(p.dtype)
                for p, q in zip(drawn, decay, strict=True)
            ]
            for gradient in (drawn, small):
                at = trial.repeat(gradient, turning)
                shifted = [p + q for p, q in zip(at, decay, strict=True)]
                nothing = scaled(y, 0.0)
                for gradients, point in ((trial.repeat(nothing), y), (at, y), (shifted, nothing)):
                    cases.append(Case(point, gradients, trial.start_at(time)))
    outcomes = [[leaf[:few] for leaf in outcome.updates] for outcome in trial.run(cases)]
    for pull, left, right in zip(outcomes[::3], outcomes[1::3], outcomes[2::3], strict=True):
        for p, a, b, (_, dtype) in zip(pull, left, right, trial.shapes, strict=True):
            slack = 1e-3 * np.abs(p) + 32 * float(jnp.finfo(dtype).eps) * np.maximum(np.abs(a), np.abs(b))
            if not np.all(np.abs(a - b) <= slack):
                return False
    return True


def _is_a_map(trial: Trial, look: _Look) -> bool:
    """Whether an update depends on nothing but its own entry of the gradient and of y, and not on earlier gradients."""
    y, other, gradient, last = trial.draw(1), trial.draw(3), trial.draw(2), 2
    opposite = scaled(gradient, -1e4)  # enough to turn the sign of an average
    before = np.arange(trial.steps) < last

    def case(first: Leaves, then: Leaves, y: Leaves) -> Case:
        choose = lambda p, q: np.where(before.reshape(-1, *(1,) * (p.ndim - 1)), p, q)
        gradients = [choose(p, q) for p, q in zip(trial.repeat(first), trial.repeat(then), strict=True)]
        return Case(y, gradients, trial.start_at(look.time))

    mixes = [partial(mixed, parity) for parity in (0, 1)]
    cases = [case(gradient, gradient, y), case(opposite, gradient, y)]
    cases += [case(gradient, mix(gradient, opposite), mix(y, other)) for mix in mixes]
    update, turned, *halves = [[leaf[last] for leaf in each.updates] for each in trial.run(cases)]
    still = any(a.any() and not u.any() for a, u in zip(look.active, update, strict=True))
    return (
        not still  # the schedule ends within the trial, which then shows nothing
        and close(update, turned, look.eps)
        and all(close(mix(half, update), update, look.eps) for mix, half in zip(mixes, halves, strict=True))
    )


def close(left: Leaves, right: Leaves, eps: list[float]) -> bool:
    """Up to the rounding that differs between two compilations of one formula."""
    return all(
        np.all(np.abs(a - b) <= 8 * e * np.maximum(np.abs(a), np.abs(b)))
        for a, b, e in zip(left, right, eps, strict=True)
    )


def scaled(leaves: Leaves, by: float) -> Leaves:
    return [(by * leaf.astype(np.float64)).astype(leaf.dtype) for leaf in leaves]


def mixed(parity: int, even: Leaves, odd: Leaves) -> Leaves:
    """Every other entry from one, the rest from the other."""
    choose: Callable[..., np.ndarray] = lambda a, b: np.where(
        np.arange(a.size).reshape(a.shape) % 2 == parity, a, b
    )
    return [choose(a, b) for a, b in zip(even, odd, strict=True)]


def _one_if_equal(leaf: Any) -> Any:
    """A leaf of entries that are equal up to rounding as one of them: constants in a program cost memory."""
    return np.ravel(leaf)[0] if leaf.size and np.allclose(leaf, leaf.flat[0], rtol=1e-5, atol=0) else leaf
