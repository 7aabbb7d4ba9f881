"""What a rule does at rest, found by trying it: optax rules are closures, and closures do not say what they are.

A rule is fed gradients γ_1, γ_2, … while y is held fixed, and its updates Δ_t(γ, y) are compared:

* decays:    Δ(0, y) depends on y.
* frozen:    Δ(γ, y) does not depend on γ, entry by entry.
* coupled:   Δ_t(γ, y) = Δ_t(γ + cy, 0) for some c: the decay comes before anything that remembers or rescales, so
             the rule rests where ∇_y g + cy = 0, whatever its memory (`chain(add_decayed_weights(c), ...)`).
* a map:     Δ_t(γ, y) does not depend on earlier gradients and acts entry by entry, so that y = U(x, y) can be
             differentiated as it stands (clipped or thresholded steps).

What decays and is neither coupled nor a map has a point of rest that moves with the rule's memory (`adamw`).
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from optax import tree

from bilevel.identity import Static
from bilevel.solvers.rules import Descent, Projected, Rule, Settled, Transformation
from bilevel.types import PyTree

STEPS = 2
SIZE = 0.05  # ‖γ‖ and ‖y‖ of the trial, below the usual limits of clipping by norm
BISECTIONS = 100


class Behaviour(NamedTuple):
    """How a rule behaves on trees of one shape."""

    active: PyTree  # where the gradient has any influence; a single bool for a leaf of equal entries
    decay: PyTree | None  # c of a coupled rule; None for a map that has to be differentiated where it is used
    plain: bool  # it rests at the zeros of the gradient, every entry free


PLAIN = Behaviour(True, 0.0, True)


def behaviour(rule: Rule, y: PyTree) -> Behaviour:
    """How `rule` behaves on trees like `y`; refuses a rule whose point of rest depends on its memory."""
    if isinstance(rule, Descent):
        return PLAIN
    settled = not jax.tree.leaves(rule)
    if isinstance(rule, Transformation):
        rule = Transformation(
            rule.transformation, {}
        )  # with the numbers it was made with: others may be traced
    leaves, structure = jax.tree.flatten(rule)
    shapes, tree_of_y = jax.tree.flatten(jax.eval_shape(lambda: y))
    arguments = structure, tree_of_y, tuple((s.shape, jnp.dtype(s.dtype)) for s in shapes), settled
    return _tried(*arguments) if not leaves else _try(leaves, *arguments)


def check_rests(rule: Rule, y: PyTree) -> None:
    """Refuses a rule without a point of rest that can be differentiated."""
    if isinstance(rule, Projected) and not isinstance(rule.rule, Descent):
        check_box(rule, y)
    behaviour(rule.rule if isinstance(rule, Projected) else rule, y)


def check_rests_at_minima(rule: Rule, y: PyTree, method: str) -> None:
    """Refuses a rule that decays y, for methods that need ∇_y g = 0 at rest; a frozen or projected y is fine."""
    found = behaviour(rule.rule if isinstance(rule, Projected) else rule, y)
    if found.decay is None or any(np.any(c) for c in jax.tree.leaves(found.decay)):
        raise ValueError(
            f"{method} needs an inner rule that comes to rest where ∇_y g = 0, but this one decays y by itself: "
            "put the decay into g, as 0.5 * c * ‖y‖²"
        )


def check_plain(rule: Rule, y: PyTree, method: str) -> None:
    """Refuses a rule that decays, freezes or projects y, for methods that solve ∇²_yy g·v = ∇_y f as it stands."""
    if isinstance(rule, Settled) or not behaviour(rule, y).plain:
        raise ValueError(
            f"{method} needs an inner rule that comes to rest where ∇_y g = 0 on all of y, but this one decays, "
            "freezes or projects y: put a decay into g, leave what is frozen out of y, or take bl.aid, bl.soba, "
            "bl.hoag or bl.stocbio, which follow such rules"
        )


def check_box(rule: Projected, y: PyTree) -> None:
    """Refuses another set than a box for y under a rule with steps of its own for every entry."""
    shapes, tree_of_y = jax.tree.flatten(jax.eval_shape(lambda: y))
    if not _is_box(rule.project, tree_of_y, tuple((s.shape, jnp.dtype(s.dtype)) for s in shapes)):
        raise ValueError(
            "the inner rule is an optax transformation projected onto a set that is not a box; where it rests depends "
            "on how it scales the entries of y: pass a step size, as bl.projected(0.1, project)"
        )


@lru_cache(maxsize=64)
def _is_box(project: Static, tree_of_y: Any, shapes: tuple) -> bool:
    rng = np.random.default_rng(0)
    with jax.ensure_compile_time_eval():
        draw = lambda: tree_of_y.unflatten([jnp.asarray(3 * rng.normal(size=s), d) for s, d in shapes])
        one, two = draw(), draw()

        def keeps(one, two):
            mixed = [project.value(_mixed(parity, one, two)) for parity in (0, 1)]
            whole = _mixed(0, *mixed), _mixed(1, *mixed)
            return _all_equal(whole, (project.value(one), project.value(two)))

        return bool(jax.jit(keeps)(one, two))


@lru_cache(maxsize=64)
def _tried(structure: Any, tree_of_y: Any, shapes: tuple, settled: bool) -> Behaviour:
    return _try([], structure, tree_of_y, shapes, settled)


def _try(leaves: list, structure: Any, tree_of_y: Any, shapes: tuple, settled: bool) -> Behaviour:
    # A number that is being traced has no value yet. Which kind of rule it belongs to does not depend on it.
    rule = structure.unflatten([0.1 if isinstance(leaf, Tracer) else leaf for leaf in leaves])
    rng = np.random.default_rng(0)
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):  # optax's Adam needs that
        draw = lambda: _sized(tree_of_y.unflatten([jnp.asarray(rng.normal(size=s), d) for s, d in shapes]))
        trial = draw(), [draw() for _ in range(STEPS)]
        look = lambda question, *more: jax.device_get(jax.jit(partial(question, rule))(*trial, *more))
        try:
            decays, active = look(_decays_and_active)
        except TypeError as error:
            if "required keyword-only argument" not in str(error):
                raise
            return PLAIN  # it searches along a line for a smaller value: at rest there is none
        active = jax.tree.map(_one_if_equal, active)
        if not any(np.any(leaf) for leaf in jax.tree.leaves(active)):
            active = jax.tree.map(lambda _: True, active)  # a step size that is still zero, not a frozen y
        if not decays:
            free = all(np.all(leaf) for leaf in jax.tree.leaves(active))
            return Behaviour(active, jax.tree.map(lambda _: 0.0, active), free)
        if settled:
            decay, coupled = look(_coupling)
            if coupled:
                return Behaviour(active, jax.tree.map(_one_if_equal, decay), False)
        if look(_is_a_map, draw()):
            return Behaviour(active, None, False)
    raise ValueError(
        "the inner rule decays y after averaging or rescaling the gradient (as optax.adamw does), so where it comes "
        "to rest depends on its memory, and no implicit method can differentiate that point: put the decay into g, "
        "as 0.5 * c * ‖y‖², or before everything else, as optax.chain(optax.add_decayed_weights(c), "
        "optax.adam(...)); for a set use bl.projected; or differentiate the steps themselves with bl.itd or bl.rtho"
        if settled
        else "the inner rule decays y and its numbers may change from run to run, so that the decay is not known: "
        "leave optax.inject_hyperparams out, or put the decay into g, as 0.5 * c * ‖y‖²"
    )


def _updates(rule: Rule, gradients: list, y: PyTree) -> list:
    """What the rule adds to y, held fixed, when it is fed these gradients one after another."""
    memory, found = rule.init(y), []
    for gradient in gradients:
        if isinstance(rule, Transformation):  # a small update would be lost in the digits of y
            update, memory = rule.transformation.value.update(gradient, memory, y)
        else:
            after, memory = rule.update(gradient, memory, y)
            update = tree.sub(after, y)
        found.append(update)
    return found


def _decays_and_active(rule: Rule, y: PyTree, gradients: list) -> tuple[jax.Array, PyTree]:
    nothing = tree.zeros_like(y)
    at_rest, moved = _updates(rule, [nothing] * STEPS, y), _updates(rule, gradients, y)
    decays = ~_all_equal(at_rest, _updates(rule, [nothing] * STEPS, nothing))
    differs = lambda *pairs: jnp.any(jnp.stack([a != b for a, b in pairs]), axis=0)
    active = jax.tree.map(
        lambda *leaves: differs(*zip(leaves[:STEPS], leaves[STEPS:], strict=True)), *at_rest, *moved
    )
    return decays, active


def _coupling(rule: Rule, y: PyTree, gradients: list) -> tuple[PyTree, jax.Array]:
    """The c with Δ_t(γ, y) = Δ_t(γ + cy, 0), and whether it exists: by proportion, else by bisection."""
    nothing = tree.zeros_like(y)
    first = lambda gradient, y: _updates(rule, [gradient], y)[0]
    share = jax.tree.map(_quotient, first(nothing, y), first(y, nothing))

    def halve(bounds, _):
        low, high = bounds
        c = tree.scale(0.5, tree.add(low, high))
        # At γ = −cy too large a decay still pulls y towards zero: the update is opposite to y.
        too_small = jax.tree.map(lambda d, a: d * a < 0, first(jax.tree.map(lambda c, a: -c * a, c, y), y), y)
        keep = lambda condition, a, b: jax.tree.map(jnp.where, condition, a, b)
        return (keep(too_small, c, low), keep(too_small, high, c)), None

    ends = tree.zeros_like(y), tree.full_like(y, 2.0**20)
    (low, high), _ = lax.scan(halve, ends, length=BISECTIONS)
    decays = jax.tree.map(lambda a: a != 0, first(nothing, y))
    bisected = jax.tree.map(lambda d, a, b: jnp.where(d, (a + b) / 2, 0), decays, low, high)
    proportional = _is_coupled(rule, share, y, gradients)
    decay = jax.tree.map(lambda a, b: jnp.where(proportional, a, b), share, bisected)
    return decay, proportional | _is_coupled(rule, bisected, y, gradients)


def _is_coupled(rule: Rule, c: PyTree, y: PyTree, gradients: list) -> jax.Array:
    """Whether Δ_t(γ, y) = Δ_t(γ + cy, 0), for gradients as large as y and as small as cy."""
    nothing, decayed = tree.zeros_like(y), jax.tree.map(lambda c, a: c * a, c, y)
    pull = jax.tree.map(jnp.abs, _updates(rule, [nothing], y)[0])
    small = [
        jax.tree.map(lambda a, b: a * b * 20 * jnp.sqrt(b.size), gradient, decayed) for gradient in gradients
    ]

    def close(left, right, pull):
        slack = 0.01 * pull + 16 * jnp.finfo(left.dtype).eps * jnp.maximum(jnp.abs(left), jnp.abs(right))
        return jnp.all(jnp.abs(left - right) <= slack)

    agree = [
        jax.tree.map(close, left, right, pull)
        for these in (gradients, small)
        for left, right in zip(
            _updates(rule, these, y),
            _updates(rule, [tree.add(each, decayed) for each in these], nothing),
            strict=True,
        )
    ]
    return jnp.all(jnp.stack(jax.tree.leaves(agree)))


def _is_a_map(rule: Rule, y: PyTree, gradients: list, other: PyTree) -> jax.Array:
    """Whether the last update depends on nothing but its own entry of the last gradient and of y."""
    *before, last = gradients
    update = _updates(rule, gradients, y)[-1]
    opposite = tree.scale(-1e4, last)  # enough to turn the sign of an average
    forgets = _all_equal(update, _updates(rule, [opposite] * len(before) + [last], y)[-1])

    def acts_entrywise(parity: int) -> jax.Array:
        mix = partial(_mixed, parity)
        mixed = _updates(rule, [*before, mix(last, opposite)], mix(y, other))[-1]
        return _all_equal(mix(mixed, update), update)

    return forgets & acts_entrywise(0) & acts_entrywise(1)


def _mixed(parity: int, even: PyTree, odd: PyTree) -> PyTree:
    """Every other entry from one tree, the rest from the other."""
    choose = lambda a, b: jnp.where(jnp.arange(a.size).reshape(a.shape) % 2 == parity, a, b)
    return jax.tree.map(choose, even, odd)


def _all_equal(left: PyTree, right: PyTree) -> jax.Array:
    """Up to the rounding that differs between two compilations of one formula."""

    def equal(a, b):
        return jnp.all(jnp.abs(a - b) <= 8 * jnp.finfo(a.dtype).eps * jnp.maximum(jnp.abs(a), jnp.abs(b)))

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(equal, left, right))))


def _quotient(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    return jnp.where(denominator == 0, 0, numerator / jnp.where(denominator == 0, 1, denominator))


def _sized(values: PyTree) -> PyTree:
    """Of norm `SIZE`, with no entry near zero."""
    signed = jax.tree.map(lambda a: jnp.where(a < 0, a - 0.5, a + 0.5), values)
    norm = tree.norm(signed)
    return jax.tree.map(lambda a: a * jnp.asarray(SIZE / norm, a.dtype), signed)


def _one_if_equal(leaf: np.ndarray) -> Any:
    """A leaf of entries that are equal up to rounding as one of them: constants in a program cost memory."""
    return leaf.flat[0] if leaf.size and np.allclose(leaf, leaf.flat[0], rtol=1e-5, atol=0) else leaf
