"""The cross product by a finite difference: two gradients of g instead of a second derivative."""

from typing import Any

import jax.numpy as jnp
from optax import tree

from bilevel.oracles import Oracles

PyTree = Any


def cross_difference(oracles: Oracles, x: PyTree, y: PyTree, v: PyTree, epsilon: float, batch: Any) -> PyTree:
    """(∇_x g(x, y + hv) − ∇_x g(x, y − hv)) / 2h ≈ ∇²_xy g(x, y)·v, with h = epsilon / ‖v‖.

    The displacement hv has length `epsilon` whatever v is; the error is (‖v‖·epsilon²/6) times a third
    derivative of ∇_x g in y, plus rounding of order ‖v‖·eps/epsilon.
    """
    norm = tree.norm(v)
    h = epsilon / (norm + jnp.finfo(norm.dtype).tiny)  # v = 0 gives 0, not 0/0
    ahead = oracles.inner_gradients(x, tree.add_scale(y, h, v), batch).x
    behind = oracles.inner_gradients(x, tree.add_scale(y, -h, v), batch).x
    return tree.scale(1 / (2 * h), tree.sub(ahead, behind))
