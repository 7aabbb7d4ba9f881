"""Ends of a symmetric operator's spectrum from a few of its products, with three vectors in memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from optax import tree

from bilevel.solvers.parts.trees import divide, dot, scaled
from bilevel.types import PyTree


def tridiagonal(product: Callable[[PyTree], PyTree], like: PyTree, steps: int) -> tuple[jax.Array, jax.Array]:
    """Return the tridiagonal matrix of Lanczos' method from a random start: its diagonal and its off-diagonal.

    It does not orthogonalize again, so it keeps only three vectors. Eigenvalues may repeat, but none is
    beyond the ends.
    """

    def step(carry: Any, _: Any) -> Any:
        q, before, beta, size = carry
        image = product(q)
        alpha = dot(q, image)
        size = jnp.maximum(size, tree.norm(image))
        left = tree.sub(tree.sub(image, scaled(alpha, q)), scaled(beta, before))
        beta = tree.norm(left)
        rounding = 16 * float(jnp.finfo(beta.dtype).eps) * size
        beta = jnp.where(beta <= rounding, 0, beta)  # no further direction
        return (scaled(divide(jnp.ones_like(beta), beta), left), q, beta, size), (alpha, beta)

    start = tree.random_like(jax.random.key(0), like)
    start = scaled(1 / tree.norm(start), start)
    none = jnp.zeros_like(dot(start, start))
    return jax.lax.scan(step, (start, tree.zeros_like(like), none, none), length=steps)[1]


def ritz_values(alpha: Any, beta: Any) -> np.ndarray:
    """Return the values in ascending order, within the spectrum up to rounding; one NaN if an entry is not finite."""
    a, b = (np.asarray(entries, dtype=float) for entries in (alpha, beta))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.array([np.nan])
    ended = np.flatnonzero(b == 0)  # the start is in an invariant subspace
    n = int(ended[0]) + 1 if len(ended) else len(a)
    return np.linalg.eigvalsh(np.diag(a[:n]) + np.diag(b[: n - 1], 1) + np.diag(b[: n - 1], -1))
