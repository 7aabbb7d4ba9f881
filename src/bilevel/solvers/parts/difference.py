"""Cross product by a finite difference: two gradients of g instead of a second derivative."""

import jax.numpy as jnp
from optax import tree

from bilevel.batch import Batch
from bilevel.oracles import Oracles
from bilevel.types import Number, PyTree


def cross_difference(
    oracles: Oracles, x: PyTree, y: PyTree, v: PyTree, epsilon: Number, batch: Batch | None
) -> PyTree:
    """Return (∇_x g(x, y + hv) − ∇_x g(x, y − hv)) / 2h ≈ ∇²_xy g(x, y)·v, with h = epsilon / ‖v‖.

    The displacement hv always has length `epsilon`. The error is (‖v‖·epsilon²/6) times a third
    derivative of ∇_x g in y, plus rounding of order ‖v‖·eps/epsilon.
    """
    norm = tree.norm(v)
    h = jnp.asarray(epsilon, norm.dtype) / (norm + jnp.finfo(norm.dtype).tiny)  # v = 0 gives 0, not 0/0
    ahead = oracles.inner_gradients(x, tree.add_scale(y, h, v), batch).x
    behind = oracles.inner_gradients(x, tree.add_scale(y, -h, v), batch).x
    return tree.scale(1 / (2 * h), tree.sub(ahead, behind))
