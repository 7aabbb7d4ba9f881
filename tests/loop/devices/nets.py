"""A net whose examples have weights, and a deeper one under `lax.scan`, with sizes that eight devices divide."""

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl

ROWS, WIDTH, HIDDEN = 64, 16, 32


def batch(rows: int = ROWS) -> bl.Batch:
    draw = np.random.default_rng(0)
    a = draw.normal(size=(rows, WIDTH))
    b = np.sin(a @ draw.normal(size=WIDTH))
    return bl.Batch(inner=(a, b), outer=(a[: rows // 2], b[: rows // 2]))


def start(rows: int = ROWS):
    draw = np.random.default_rng(1)
    y = {
        "in": 0.3 * draw.normal(size=(WIDTH, HIDDEN)),
        "bias": np.zeros(HIDDEN),
        "out": 0.3 * draw.normal(size=HIDDEN),
    }
    return np.linspace(-1.0, 1.0, rows), y


def predicted(y, a):
    return jnp.tanh(a @ y["in"] + y["bias"][None, :]) @ y["out"]


def inner(x, y, batch):
    """One weight for every example; the whole batch, so that x itself is the rows' weights."""
    errors = predicted(y, batch[0]) - batch[1]
    return jnp.mean(jax.nn.sigmoid(x) * errors**2) + 1e-2 * sum(jnp.sum(leaf**2) for leaf in y.values())


def inner_of_rows(x, y, batch, *, rows):
    return inner(x[rows], y, batch)


def outer(x, y, batch):
    return jnp.mean((predicted(y, batch[0]) - batch[1]) ** 2)


problem = bl.Problem(inner=inner, outer=outer)
of_rows = bl.Problem(inner=inner_of_rows, outer=outer)


def convex_inner(x, y, batch):
    """Quadratic in y."""
    errors = batch[0] @ jnp.sum(y["in"], axis=1) - batch[1]
    return jnp.mean(jax.nn.sigmoid(x) * errors**2) + 1e-1 * sum(jnp.sum(leaf**2) for leaf in y.values())


def convex_outer(x, y, batch):
    return jnp.mean((batch[0] @ jnp.sum(y["in"], axis=1) - batch[1]) ** 2)


convex = bl.Problem(inner=convex_inner, outer=convex_outer)
