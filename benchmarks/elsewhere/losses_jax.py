"""The two objectives in JAX, for every library on it, ours among them."""

import jax.numpy as jnp

from elsewhere.problem import A_, A, b, b_

data = (A, b), (A_, b_)


def g(x, y, batch):
    rows, targets = batch
    return jnp.mean((rows @ y - targets) ** 2) / 2 + jnp.sum(jnp.exp(x) * y**2) / 2


def f(x, y, batch):
    rows, targets = batch
    return jnp.mean((rows @ y - targets) ** 2) / 2 + 0.05 * jnp.sum(x**2)
