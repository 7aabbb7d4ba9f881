"""Products and decompositions of matrices."""

from bilevel.torch.table.registry import register


@register("aten.linear.default")
def linear(a, weight, bias=None):
    out = a @ weight.T
    return out if bias is None else out + bias
