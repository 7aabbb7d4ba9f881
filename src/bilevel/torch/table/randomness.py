"""Random tensors and dropout."""

import jax
import jax.numpy as jnp

from bilevel.torch.table.registry import register


@register("aten.native_dropout.default", random=True)
def native_dropout(key, a, p, train):
    if not train:
        return a, jnp.ones(a.shape, bool)
    kept = jax.random.bernoulli(key, 1 - p, a.shape)
    return jnp.where(kept, a / (1 - p) if p < 1 else 0.0, 0), kept
