"""What a rule does at rest, found by trying it: optax rules are closures, and closures do not say what they are.

A rule is fed gradients γ_1, γ_2, … while y is held fixed, and its updates Δ_t(γ, y) are compared:

* decays:    Δ(0, y) depends on y.
* frozen:    Δ(γ, y) does not depend on γ, entry by entry.
* coupled:   Δ_t(γ, y) = Δ_t(γ + cy, 0) for some c and every y: the decay comes before anything that remembers or
             rescales (`chain(add_decayed_weights(c), ...)`), so the rule rests where ∇_y g + cy = 0.
* a map:     Δ_t(γ, y) does not depend on earlier gradients and acts entry by entry, so that y = U(x, y) can be
             differentiated as it stands (clipped or thresholded steps).

What depends on y and is neither coupled nor a map has no point of rest that could be told from a trial (`adamw`).
Schedules are taken at their end, where y comes to rest: the trial is made with counters far ahead, and at the start
where a step size has gone to zero by then. y is tried small and large, so that bounds are met.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from optax import tree

from bilevel.problem import Problem
from bilevel.solvers.fixed_points.trial import Trial, all_equal, mixed
from bilevel.solvers.ingredients.trees import select
from bilevel.solvers.rules import Descent, Rule, Transformation
from bilevel.types import PyTree

STEPS, FEWER, MANY = 48, 4, 1_000_000  # trial steps; fewer for a y of many entries
SIZE = 0.05  # ‖γ‖ and ‖y‖ of the trial, below the usual limits of clipping by norm
SCALES = (1.0, -30.0, 1e4)  # of y
FAR = 1_000_000  # steps
BISECTIONS = 100


class Behaviour(NamedTuple):
    """How a rule behaves on trees of one shape."""

    active: PyTree  # where the gradient has any influence; a single bool for a leaf of equal entries
    decay: PyTree | None  # c of a coupled rule; None for a map that has to be differentiated where it is used
    plain: bool  # it rests at the zeros of the gradient, every entry free


PLAIN = Behaviour(True, 0.0, True)


def behaviour(problem: Problem, rule: Rule, y: PyTree) -> Behaviour:
    """How `rule` behaves on trees like `y`; refuses a rule without a point of rest. Kept with the problem."""
    if isinstance(rule, Descent):
        return PLAIN
    if isinstance(rule, Transformation) and rule.scale is not None:
        rule = replace(rule, scale=None)  # where it rests does not depend on it
    settled = not jax.tree.leaves(rule)
    if isinstance(rule, Transformation):
        rule = Transformation(
            rule.transformation, {}
        )  # with the numbers it was made with: others may be traced
    leaves, structure = jax.tree.flatten(rule)
    like, tree_of_y = jax.tree.flatten(jax.eval_shape(lambda: y))
    shapes = tuple((each.shape, jnp.dtype(each.dtype)) for each in like)
    kept, key = problem.memory.setdefault("rules", {}), (structure, tree_of_y, shapes, settled)
    if leaves:  # numbers of a rule of one's own
        return _try(leaves, *key)
    if key not in kept:
        kept[key] = _try([], *key)
    return kept[key]


def _try(
    leaves: list[Any], structure: Any, tree_of_y: Any, shapes: tuple[Any, ...], settled: bool
) -> Behaviour:
    # A number that is being traced has no value yet. Which kind of rule it belongs to does not depend on it.
    rule = structure.unflatten([0.1 if isinstance(leaf, Tracer) else leaf for leaf in leaves])
    steps = FEWER if sum(int(np.prod(shape)) for shape, _ in shapes) > MANY else STEPS

    def trial(seed: Any) -> Trial:
        draw = lambda n: _sized(
            tree_of_y.unflatten([_draw(seed + np.uint32(n + 3 * i), *s) for i, s in enumerate(shapes)])
        )
        return Trial(rule, draw(1), draw(2), draw(3), steps)

    when = (FAR, 0)
    found = _now(lambda seed: lax.map(lambda t: _decays_and_active(trial(seed), t), jnp.array(when)))
    decays, active, reach, blind = found
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(reach)):
        raise ValueError(
            f"the inner rule gives NaN or infinite updates of y in {shapes[0][1]}, on gradients of size {SIZE}: keep y "
            "in float32, or give the rule a larger eps (optax.adam's 1e-8 is zero in float16)"
        )
    # What is left of a step size that a schedule has taken to zero may be its rounding.
    active = jax.tree.map(lambda a, r: _rows(r > 1e-6 * r.max(), a) & a, active, reach)
    i = _when_all_move([jax.tree.map(lambda leaf, i=i: leaf[i], active) for i in range(len(when))])
    active = jax.tree.map(lambda leaf: _one_if_equal(leaf[i, ...]), active)
    if not decays[i]:
        _refuse_blind(blind, i)
        free = all(np.all(leaf) for leaf in jax.tree.leaves(active))
        return Behaviour(active, jax.tree.map(lambda _: 0.0, active), free)
    if settled:
        decay, coupled = _now(lambda seed: _coupling(trial(seed), when[i]))
        if coupled:
            _refuse_blind(blind, i)
            return Behaviour(active, jax.tree.map(_one_if_equal, decay), False)
    if _now(lambda seed: _is_a_map(trial(seed), when[i])):
        return Behaviour(active, None, False)
    raise ValueError(
        "the inner rule's update depends on y itself, after averaging or rescaling the gradient (as optax.adamw's "
        "weight decay does), so where it comes to rest depends on its memory or cannot be told from a trial, and no "
        "implicit method can differentiate that point: put the decay into g, as 0.5 * c * ‖y‖², or before everything "
        "else, as optax.chain(optax.add_decayed_weights(c), optax.adam(...)); for a set use bl.projected; or "
        "differentiate the steps themselves with bl.itd or bl.rtho"
        if settled
        else "the inner rule decays y and its numbers may change from run to run, so that the decay is not known: "
        "leave optax.inject_hyperparams out, or put the decay into g, as 0.5 * c * ‖y‖²"
    )


def _refuse_blind(blind: PyTree, i: int) -> None:
    if any(leaf[i] for leaf in jax.tree.leaves(blind)):
        raise ValueError(
            "the inner rule follows a part of the gradient only, such as its deviation from the mean "
            "(optax.centralize), and so rests where that part is zero, which implicit methods do not follow: leave "
            "that out, or differentiate the steps themselves with bl.itd or bl.rtho"
        )


def _now(function: Callable[[Any], PyTree]) -> PyTree:
    """Its values, as one program, also while something else is being traced.

    The seed is its argument: what does not depend on any, the compiler works out itself, slowly. And that of a CPU must
    not make a multiplication of a division, after which schedules no longer end where they say.
    """
    seed = np.uint32(0)
    as_written = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs that
        program = jax.jit(function, compiler_options=as_written).lower(seed).compile()
        try:
            return jax.device_get(program(seed))
        except (
            TypeError
        ):  # it was given numbers that are being traced: operation by operation those may drop out
            with jax.ensure_compile_time_eval():
                found = jax.jit(function)(seed)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(found)):
        raise ValueError(
            "the inner rule was made with a number that is being traced, so that it cannot be tried out: pass a "
            "step size as it is, make the rule with optax.inject_hyperparams, or compare numbers with bl.sweep"
        )
    return jax.device_get(found)


def _when_all_move(active: list[PyTree]) -> int:
    """Which of the times every entry moves at that ever does: a step size may begin at zero, or end there."""
    ever = jax.tree.map(np.logical_or, *active)
    for i, then in enumerate(active):
        if all(jax.tree.leaves(jax.tree.map(np.array_equal, then, ever))):
            return i
    raise ValueError(
        "the inner rule moves parts of y only at the start and others only later, so that there is no one point where "
        "it rests: let the schedules of all parts overlap, or differentiate the steps with bl.itd or bl.rtho"
    )


def _decays_and_active(trial: Trial, ahead: Any) -> tuple[jax.Array, PyTree, PyTree, PyTree]:
    """Whether Δ(0, y) depends on y, where γ has any influence, how large, and in which leaves only a part of γ has."""

    def case(scale, kind):
        # Half of the time the same gradient again and again: some rules wait for a sign to last.
        def at(t):
            wobble = jnp.where(t < trial.steps // 2, jnp.cos(2.0 * t), 1.0)
            varied = lambda a, b: a * jnp.asarray(wobble, a.dtype) + b * jnp.asarray(0.3, b.dtype)
            kinds = lambda a, b: [jnp.zeros_like(a), varied(a, b), jnp.full_like(a, SIZE), a - jnp.mean(a)]
            return jax.tree.map(lambda a, b: lax.select_n(kind, *kinds(a, b)), trial.gradient, trial.other)

        return at, jax.tree.map(lambda a: a * jnp.asarray(scale, a.dtype), trial.y)

    def compare(active, pair):  # of which the one in the middle tells where γ has influence
        (scale, kind, base), first = pair
        apart, equal = trial.apart(case(scale, kind), case(base, 0), ahead)
        most = jax.tree.map(lambda a: jnp.max(a, initial=0), apart)
        moved = jax.tree.map(lambda a, m: a > 1e-5 * m, apart, most)
        return select(first, moved, active), (equal, most)

    # Without a gradient y at 1, −30 and 10⁴ times its size against y = 0; then with gradients of three kinds.
    pairs = [(scale, 0, 0.0) for scale in SCALES] + [(1.0, kind, 1.0) for kind in (1, 2, 3)]
    scales, kinds, bases = (jnp.array(column) for column in zip(*pairs, strict=True))
    cases = (scales, kinds.astype(jnp.int32), bases), jnp.arange(len(pairs)) == len(SCALES)
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, bool), trial.y)
    active, (equal, most) = lax.scan(compare, nothing, cases)
    decays, (varied, level, centred) = ~jnp.all(equal[: len(SCALES)]), range(len(SCALES), len(pairs))
    seen = lambda m, i: m[i] > 1e-5 * m[varied]
    blind = lambda a, m: (m[varied] > 0) & (a.size > 1) & ~(seen(m, level) & seen(m, centred))
    return decays, active, jax.tree.map(lambda m: m[varied], most), jax.tree.map(blind, active, most)


def _coupling(trial: Trial, ahead: int) -> tuple[PyTree, jax.Array]:
    """The c with Δ_t(γ, y) = Δ_t(γ + cy, 0), and whether it exists: by proportion, else by bisection."""
    y, nothing = trial.y, tree.zeros_like(trial.y)
    first = lambda gradient, y: jax.tree.map(lambda a: a[0], trial.updates(lambda t: gradient, y, ahead, 1))
    pull = first(nothing, y)
    share = jax.tree.map(_quotient, pull, first(y, nothing))

    def halve(bounds, _):
        low, high = bounds
        c = tree.scale(0.5, tree.add(low, high))
        # At γ = −cy too large a decay still pulls y towards zero: the update is opposite to y.
        too_small = jax.tree.map(lambda d, a: d * a < 0, first(jax.tree.map(lambda c, a: -c * a, c, y), y), y)
        keep = lambda condition, a, b: jax.tree.map(jnp.where, condition, a, b)
        return (keep(too_small, c, low), keep(too_small, high, c)), None

    ends = tree.zeros_like(y), tree.full_like(y, 2.0**10)
    (low, high), _ = lax.scan(halve, ends, length=BISECTIONS)
    bisected = jax.tree.map(lambda d, a, b: jnp.where(d != 0, (a + b) / 2, 0), pull, low, high)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), share, bisected)
    coupled = lax.map(lambda c: _is_coupled(trial, c, ahead), both)
    return jax.tree.map(lambda a: jnp.where(coupled[0], a[0], a[1]), both), jnp.any(coupled)


def _is_coupled(trial: Trial, c: PyTree, ahead: int) -> jax.Array:
    """Whether Δ_t(γ, y) = Δ_t(γ + cy, 0), for gradients as large as y and as small as cy, and for several y."""
    nothing, few = tree.zeros_like(trial.y), min(trial.steps, 6)
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(c)]))

    def close(left, right, pull):
        slack = 1e-3 * pull + 32 * float(jnp.finfo(left.dtype).eps) * jnp.maximum(
            jnp.abs(left), jnp.abs(right)
        )
        return jnp.all(jnp.abs(left - right) <= slack)

    def agree(case):
        scale, which, small = case
        # As large as that, but with cy below what clipping by norm lets through.
        by = jnp.sign(scale) * jnp.minimum(jnp.abs(scale), 10 / jnp.maximum(largest, 1e-3))
        y = jax.tree.map(lambda a, b: jnp.where(which, a, b) * jnp.asarray(by, a.dtype), trial.y, trial.other)

        def gradient_at(t):
            def entry(a, c, b):
                turning = a * jnp.asarray(jnp.cos(1.0 + 2.0 * t), a.dtype)
                return jnp.where(small, jnp.asarray(20 * np.sqrt(a.size), a.dtype) * turning * c * b, turning)

            return jax.tree.map(entry, trial.gradient, c, y)

        shifted = lambda t: jax.tree.map(lambda a, c, b: a + c * b, gradient_at(t), c, y)
        pull = jax.tree.map(jnp.abs, trial.updates(lambda t: nothing, y, ahead, few))
        left, right = trial.updates(gradient_at, y, ahead, few), trial.updates(shifted, nothing, ahead, few)
        return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(close, left, right, pull))))

    cases = [(scale, which, small) for scale in SCALES for which in (True, False) for small in (True, False)]
    return jnp.all(lax.map(agree, tuple(jnp.array(column) for column in zip(*cases, strict=True))))


def _is_a_map(trial: Trial, ahead: int) -> jax.Array:
    """Whether an update depends on nothing but its own entry of the gradient and of y, and not on earlier gradients."""
    y, other, gradient, steps = trial.y, trial.other, trial.gradient, 3
    opposite = tree.scale(-1e4, gradient)  # enough to turn the sign of an average

    def last(before, gradient, y):
        choose = lambda t: jax.tree.map(lambda a, b: jnp.where(t < steps - 1, a, b), before, gradient)
        return jax.tree.map(lambda a: a[-1], trial.updates(choose, y, ahead, steps))

    update = last(gradient, gradient, y)
    found = all_equal(update, last(opposite, gradient, y))
    for parity in (0, 1):
        mix = partial(mixed, parity)
        found = found & all_equal(mix(last(gradient, mix(gradient, opposite), mix(y, other)), update), update)
    return found


def _quotient(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    return jnp.where(denominator == 0, 0, numerator / jnp.where(denominator == 0, 1, denominator))


def _draw(seed: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Numbers between −1 and 1 without an order, from a formula that takes the compiler less than random ones."""
    word = jnp.arange(int(np.prod(shape)), dtype=jnp.uint32) * np.uint32(2654435761) + seed * np.uint32(40503)
    word = (word ^ (word >> 15)) * np.uint32(2246822519)
    word = (word ^ (word >> 13)) * np.uint32(3266489917)
    return (((word ^ (word >> 16)) >> 8).astype(jnp.float32) * 2.0**-23 - 1.0).astype(dtype).reshape(shape)


def _rows(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """One value for each row of `like`, with as many dimensions."""
    return values.reshape(-1, *(1,) * (like.ndim - 1))


def _sized(values: PyTree) -> PyTree:
    """Of norm `SIZE`, with no entry near zero."""
    signed = jax.tree.map(lambda a: jnp.where(a < 0, a - 0.5, a + 0.5), values)
    norm = tree.norm(signed)
    return jax.tree.map(lambda a: a * jnp.asarray(SIZE / norm, a.dtype), signed)


def _one_if_equal(leaf: np.ndarray) -> Any:
    """A leaf of entries that are equal up to rounding as one of them: constants in a program cost memory."""
    return leaf.flat[0] if leaf.size and np.allclose(leaf, leaf.flat[0], rtol=1e-5, atol=0) else leaf
