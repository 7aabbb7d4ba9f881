"""Convolutions."""

import jax.numpy as jnp
from jax import lax

from bilevel.torch._table.registry import register


@register("aten.convolution.default")
def convolution(a, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    spatial = a.ndim - 2
    each = lambda numbers: list(numbers) * (spatial // len(numbers))  # one number means all axes
    stride, padding, dilation, output_padding = map(each, (stride, padding, dilation, output_padding))
    pads, spread = [(p, p) for p in padding], [1] * spatial
    if transposed:  # the flipped weight over the input with `stride - 1` zeros between its entries
        weight = _transposed(weight, groups)
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = [(r - p, r - p + o) for r, p, o in zip(reach, padding, output_padding, strict=True)]
        stride, spread = spread, stride
    out = lax.conv_general_dilated(a, weight, stride, pads, spread, dilation, feature_group_count=groups)
    return out if bias is None else out + bias.reshape(-1, *[1] * spatial)


def _transposed(weight, groups):
    """Return the weight of shape (inputs, outputs per group, *kernel) as (outputs, inputs per group, *kernel)."""
    inputs, outputs, *kernel = weight.shape
    weight = weight.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
    return jnp.flip(weight.reshape(groups * outputs, inputs // groups, *kernel), range(2, weight.ndim - 1))
