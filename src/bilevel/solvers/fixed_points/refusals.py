"""The inner rules that a method refuses, by where they come to rest."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from optax import tree

from bilevel.solvers.fixed_points.classification import behavior
from bilevel.solvers.rules import Descent, Projected, Settled
from bilevel.types import PyTree


def check_rests(solver: Any, y: PyTree) -> None:
    """Refuses an inner rule without a point of rest that can be differentiated."""
    rule = solver.inner
    if isinstance(rule, Projected) and not isinstance(rule.rule, Descent):
        check_box(rule, y)
    behavior(solver.problem, rule.rule if isinstance(rule, Projected) else rule, y)


def check_rests_at_minima(solver: Any, y: PyTree) -> None:
    """Refuses a rule that decays y, for methods that need ∇_y g = 0 at rest; a frozen or projected y is fine."""
    rule = solver.inner
    found = behavior(solver.problem, rule.rule if isinstance(rule, Projected) else rule, y)
    if found.decay is None or any(np.any(c) for c in jax.tree.leaves(found.decay)):
        raise ValueError(
            f"{solver.name} needs an inner rule that comes to rest where ∇_y g = 0, but this one decays y by itself: "
            "put the decay into g, as 0.5 * c * ‖y‖²"
        )


def check_plain(solver: Any, y: PyTree) -> None:
    """Refuses a rule that decays, freezes or projects y, for methods that solve ∇²_yy g·v = ∇_y f as it stands."""
    if isinstance(solver.inner, Settled) or not behavior(solver.problem, solver.inner, y).plain:
        raise ValueError(
            f"{solver.name} needs an inner rule that comes to rest where ∇_y g = 0 on all of y, but this one decays, "
            "freezes or projects y: put a decay into g, leave what is frozen out of y, or take bl.aid, bl.soba, "
            "bl.hoag or bl.stocbio, which follow such rules"
        )


def check_box(rule: Projected, y: PyTree) -> None:
    """Refuses another set than a box for y under a rule with steps of its own for every entry."""
    rng = np.random.default_rng(0)
    draw = lambda leaf: jnp.asarray(rng.normal(size=jnp.shape(leaf)), leaf.dtype)

    def keeps(one, two):
        halves = [rule.settle(mixed(parity, one, two)) for parity in (0, 1)]
        return all_equal((mixed(0, *halves), mixed(1, *halves)), (rule.settle(one), rule.settle(two)))

    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        like = jax.eval_shape(lambda: y)
        one, two = jax.tree.map(draw, like), jax.tree.map(draw, like)
        found = [jax.jit(keeps)(tree.scale(by, one), tree.scale(by, two)) for by in (0.03, 3.0, 300.0, 3e4)]
    if not all(found):
        raise ValueError(
            "the inner rule is an optax transformation projected onto a set that is not a box; where it rests depends "
            "on how it scales the entries of y: pass a step size, as bl.projected(0.1, project)"
        )


def mixed(parity: int, even: PyTree, odd: PyTree) -> PyTree:
    """Every other entry from one tree, the rest from the other."""
    choose = lambda a, b: jnp.where(jnp.arange(a.size).reshape(a.shape) % 2 == parity, a, b)
    return jax.tree.map(choose, even, odd)


def all_equal(left: PyTree, right: PyTree) -> jax.Array:
    """Up to the rounding that differs between two compilations of one formula."""

    def equal(a, b):
        return jnp.all(
            jnp.abs(a - b) <= 8 * float(jnp.finfo(a.dtype).eps) * jnp.maximum(jnp.abs(a), jnp.abs(b))
        )

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(equal, left, right))))
