"""Small objects that are right, to make valid calls of, and to put where others belong."""

from functools import cache

import jax.numpy as jnp
import numpy as np

import bilevel as bl
from bilevel.data import Examples


def inner(x, y, batch=None):
    return 0.5 * jnp.sum((y - x) ** 2) + (0.0 if batch is None else 0.0 * jnp.sum(batch))


def outer(x, y, batch=None):
    return (
        0.5 * jnp.sum(y * y) + 0.5 * jnp.sum((x - 1) ** 2) + (0.0 if batch is None else 0.0 * jnp.sum(batch))
    )


PROBLEM = bl.Problem(inner=inner, outer=outer)
SOLVER = bl.aid(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1)
CONSTANTS = bl.theory.Constants(0.5, 1.0, 1.0, 0.1)
QUADRATIC = bl.theory.Constants(0.5, 1.0, 1.0, 0.0)
NOISE = bl.theory.Noise(0.1, 0.1, 0.1)
X0, Y0 = np.ones(2, np.float32), np.zeros(2, np.float32)
DATA = bl.Batch(inner=np.ones((4, 2), np.float32), outer=np.ones((4, 2), np.float32))
INPUTS = np.array([[0.0, 1.0], [1.0, 0.5], [2.0, -1.0], [0.5, 3.0]])
EXAMPLES = Examples(INPUTS, np.array([1.0, -1.0, 1.0, -1.0]))
DIGITS = Examples(INPUTS.astype(np.float32), np.array([0, 1, 2, 1]))


@cache
def result() -> bl.Result:
    return bl.run(SOLVER, X0, Y0, steps=2)


@cache
def run_state() -> bl.RunState:
    return bl.start(SOLVER, X0, Y0)


@cache
def event() -> bl.hooks.Event:
    return bl.hooks.Event(1, 1, run_state(), None, {"outer_value": np.ones(1)}, 0.1, "AID")
