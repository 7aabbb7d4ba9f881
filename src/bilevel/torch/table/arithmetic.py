"""Arithmetic, comparisons, bits and choices of single entries."""

import jax.numpy as jnp

from bilevel.torch.table.registry import promoted, register


@register("aten.add.Tensor", "aten.add.Scalar")
def add(a, b, alpha=1):
    a, b = promoted(a, b)
    return a + (b if alpha == 1 else b * jnp.asarray(alpha, b.dtype))


@register("aten.mul.Tensor", "aten.mul.Scalar")
def mul(a, b):
    a, b = promoted(a, b)
    return a * b


@register("aten.pow.Tensor_Scalar")
def pow_scalar(a, exponent):
    return a**exponent
