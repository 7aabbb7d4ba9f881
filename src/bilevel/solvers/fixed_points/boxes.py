"""Whether a set is a box: its projection acts entry by entry."""

import jax
import numpy as np

from bilevel.solvers.fixed_points.trial import close, eps_of, mixed, scaled
from bilevel.solvers.rules import Projected
from bilevel.types import PyTree


def check_box(rule: Projected, y: PyTree) -> None:
    """Raise if an optax rule, which scales every entry of y differently, is projected onto another set than a box."""
    like, structure = jax.tree.flatten(jax.eval_shape(lambda: y))
    rng, eps = np.random.default_rng(0), eps_of(leaf.dtype for leaf in like)
    draw = lambda: [rng.normal(size=leaf.shape).astype(leaf.dtype) for leaf in like]
    one, two = draw(), draw()
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        settle = jax.jit(lambda leaves: jax.tree.leaves(rule.settle(structure.unflatten(leaves))))
        onto = lambda leaves: [np.asarray(leaf, float) for leaf in jax.device_get(settle(leaves))]
        for by in (0.03, 3.0, 300.0, 3e4):
            a, b = scaled(one, by), scaled(two, by)
            halves = [onto(mixed(parity, a, b)) for parity in (0, 1)]
            if not close(mixed(0, *halves), onto(a), eps) or not close(mixed(1, *halves), onto(b), eps):
                raise ValueError(
                    "the inner rule is an optax transformation projected onto a set that is not a box; where it rests "
                    "depends on how it scales the entries of y: pass a step size, as bl.projected(0.1, project)"
                )
