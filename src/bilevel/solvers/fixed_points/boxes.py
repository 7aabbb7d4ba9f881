"""Check that a set is a box: its projection acts entry by entry."""

import jax
import numpy as np

from bilevel.solvers.fixed_points.trial import Trial
from bilevel.solvers.rules import Projected
from bilevel.types import PyTree


def check_box(rule: Projected, y: PyTree) -> None:
    """Raise if an optax rule is projected onto a set that is not a box.

    Optax rules scale every entry of y differently.
    """
    like, structure = jax.tree.flatten(jax.eval_shape(lambda: y))
    trial = Trial(rule, structure, tuple((leaf.shape, leaf.dtype) for leaf in like))
    settle = jax.jit(lambda leaves: jax.tree.leaves(rule.settle(structure.unflatten(leaves))))

    def onto(vector: np.ndarray) -> np.ndarray:
        leaves = jax.device_get(settle(trial.arrays(vector)))
        return np.concatenate([np.asarray(leaf, float).ravel() for leaf in leaves])

    drawn = np.random.default_rng(0).normal(size=(2, trial.size))
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        for by in (0.03, 3.0, 300.0, 3e4):
            one, two = trial.rounded(by * drawn)
            halves = [onto(trial.mixed(parity, one, two)) for parity in (0, 1)]
            if not all(
                trial.is_close(trial.mixed(k, *halves), onto(whole)) for k, whole in enumerate((one, two))
            ):
                raise ValueError(
                    "the inner rule is an optax transformation projected onto a set that is not a box; where it rests "
                    "depends on how it scales the entries of y: pass a step size, as bl.projected(0.1, project)"
                )
