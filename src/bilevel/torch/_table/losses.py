"""Losses that torch keeps as operations, or whose decompositions have other derivatives."""

import jax
import jax.numpy as jnp

from bilevel.torch._table.arithmetic import magnitude
from bilevel.torch._table.registry import promoted, register, wide


def reduced(losses, reduction):
    """Return the losses, their mean or their sum, by torch's number of the reduction."""
    return (lambda each: each, jnp.mean, jnp.sum)[reduction](losses)


@register("aten.mse_loss.default")
def mse_loss(a, b, reduction=1):
    a, b = promoted(a, b)
    return reduced(jnp.square(a - b), reduction)


@register("aten.smooth_l1_loss.default")
def smooth_l1_loss(a, b, reduction=1, beta=1.0):
    a, b = promoted(a, b)
    size = magnitude(a - b)
    return reduced(jnp.where(size < beta, (a - b) ** 2 / (2 * beta or 1), size - beta / 2), reduction)


@register("aten.huber_loss.default")
def huber_loss(a, b, reduction=1, delta=1.0):
    a, b = promoted(a, b)
    size = magnitude(a - b)
    return reduced(jnp.where(size <= delta, (a - b) ** 2 / 2, delta * (size - delta / 2)), reduction)


@jax.custom_jvp
def cross_entropy(p, target):
    """Return the cross entropy of probabilities, whose logarithms torch bounds by -100."""
    return -target * jnp.maximum(jnp.log(p), -100) - (1 - target) * jnp.maximum(jnp.log1p(-p), -100)


@cross_entropy.defjvp
def cross_entropy_jvp(primals, tangents):
    p, target = primals
    slope = (p - target) / jnp.maximum(p * (1 - p), 1e-12)
    return cross_entropy(p, target), tangents[0] * slope + tangents[1] * (jnp.log1p(-p) - jnp.log(p))


@register("aten.binary_cross_entropy.default")
def binary_cross_entropy(p, target, weight=None, reduction=1):
    losses = cross_entropy(*promoted(wide(p), wide(target)))
    return reduced(losses if weight is None else losses * weight, reduction)


@register("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(a, target, weight=None, pos_weight=None, reduction=1):
    positive = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    losses = (1 - target) * a - positive * jax.nn.log_sigmoid(a)
    return reduced(losses if weight is None else losses * weight, reduction)


@register("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss(a, target, weight, reduction, ignored):
    a, axis = wide(a), min(a.ndim - 1, 1)
    kept = target != ignored
    index = jnp.where(kept, target, 0)
    picked = jnp.take_along_axis(a, jnp.expand_dims(index, axis), axis).squeeze(axis)
    weights = jnp.where(kept, 1 if weight is None else weight[index], 0).astype(a.dtype)
    losses, total = -jnp.where(kept, picked, 0) * weights, jnp.sum(weights)
    if reduction == 0:
        return losses, jnp.zeros((), a.dtype)
    return jnp.sum(losses) / (total if reduction == 1 else 1), total
