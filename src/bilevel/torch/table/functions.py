"""Functions of single entries, also activations."""

import jax.numpy as jnp

from bilevel.torch.table.registry import as_float, register


@register("aten.tanh.default")
def tanh(a):
    return jnp.tanh(as_float(a))
