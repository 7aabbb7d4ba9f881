"""Reductions, cumulative operations and softmax."""

import jax.numpy as jnp

from bilevel.torch.table.registry import axes_of, register


@register("aten.sum.dim_IntList")
def sum_(a, dim=None, keepdim=False, dtype=None):
    return jnp.sum(a, axes_of(dim, a.ndim), dtype=dtype, keepdims=keepdim)


@register("aten.mean.dim")
def mean(a, dim=None, keepdim=False, dtype=None):
    return jnp.mean(a, axes_of(dim, a.ndim), keepdims=keepdim)
