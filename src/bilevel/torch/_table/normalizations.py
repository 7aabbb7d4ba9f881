"""Normalizations."""

import math

import jax.numpy as jnp
from jax import lax

from bilevel.torch._table.registry import register, wide


def _normalized(a, axes, eps):
    """Return the array with mean 0 and variance 1 along these axes; the means, inverse deviations and variances."""
    a = wide(a)
    mean = jnp.mean(a, axes, keepdims=True)
    var = jnp.mean((a - mean) ** 2, axes, keepdims=True)
    rate = lax.rsqrt(var + eps)
    return (a - mean) * rate, mean, rate, var


def _scaled(a, weight, bias, shape):
    a = a if weight is None else a * weight.reshape(shape)
    return a if bias is None else a + bias.reshape(shape)


# Batch normalization: axis 1 has the channels. As in torch, statistics have no derivatives.


def _channels(a):
    return (a.shape[1],) + (1,) * (a.ndim - 2), (0, *range(2, a.ndim))


@register("aten._native_batch_norm_legit_functional.default")
def batch_norm(a, weight, bias, running_mean, running_var, training, momentum, eps):
    old = lax.stop_gradient((running_mean, running_var))
    if not training:
        return *batch_norm_fixed(a, weight, bias, *old, momentum, eps), *old
    shape, axes = _channels(a)
    out, *seen = _normalized(a, axes, eps)
    mean, rate, var = (lax.stop_gradient(each).reshape(-1) for each in seen)
    count = a.size // a.shape[1]
    new = mean, var * (count / max(count - 1, 1))
    new = [(1 - momentum) * before + momentum * now for before, now in zip(old, new, strict=True)]
    return _scaled(out, weight, bias, shape), mean, rate, *new


@register("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(a, weight, bias, training, momentum, eps):
    zeros = jnp.zeros(a.shape[1], a.dtype)
    return batch_norm(a, weight, bias, zeros, zeros, True, momentum, eps)[:3]


@register("aten._native_batch_norm_legit_no_training.default")
def batch_norm_fixed(a, weight, bias, running_mean, running_var, momentum, eps):
    shape, _ = _channels(a)
    mean, var = (wide(lax.stop_gradient(each)).reshape(shape) for each in (running_mean, running_var))
    return (
        _scaled((a - mean) * lax.rsqrt(var + eps), weight, bias, shape),
        None,
        None,
    )  # torch returns nothing of use


# Normalization of single samples.


@register("aten.native_layer_norm.default")
def native_layer_norm(a, shape, weight, bias, eps):
    out, mean, rate, _ = _normalized(a, range(a.ndim - len(shape), a.ndim), eps)
    return _scaled(out, weight, bias, shape), *lax.stop_gradient((mean, rate))


@register("aten.layer_norm.default")
def layer_norm(a, shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    return native_layer_norm(a, shape, weight, bias, eps)[0]


@register("aten.native_group_norm.default")
def native_group_norm(a, weight, bias, batch, channels, pixels, groups, eps):
    out, mean, rate, _ = _normalized(a.reshape(batch, groups, -1), 2, eps)
    return _scaled(out.reshape(a.shape), weight, bias, _channels(a)[0]), mean[..., 0], rate[..., 0]


@register("aten.group_norm.default")
def group_norm(a, groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    return native_group_norm(a, weight, bias, a.shape[0], a.shape[1], None, groups, eps)[0]


@register("aten._fused_rms_norm.default")
def fused_rms_norm(a, shape, weight, eps):
    a = wide(a)
    eps = jnp.finfo(a.dtype).eps if eps is None else eps
    rate = lax.rsqrt(jnp.mean(a * a, range(a.ndim - len(shape), a.ndim), keepdims=True) + eps)
    return _scaled(a * rate, weight, None, shape), rate


@register("aten.rms_norm.default")
def rms_norm(a, shape, weight=None, eps=None):
    return fused_rms_norm(a, shape, weight, eps)[0]


# Normalization of weights.


@register("aten._weight_norm_interface.default")
def weight_norm_interface(v, g, dim=0):
    norms = _norms(v, 2, [axis for axis in range(v.ndim) if dim == -1 or axis != dim])
    norms = norms.reshape(g.shape)
    return v * (g / norms), lax.stop_gradient(norms)


@register("aten._weight_norm.default")
def weight_norm(v, g, dim=0):
    return weight_norm_interface(v, g, dim)[0]


@register("aten.renorm.default")
def renorm(a, power, dim, limit):
    norms = _norms(a, power, [axis for axis in range(a.ndim) if axis != dim % a.ndim])
    return a * jnp.where(norms > limit, limit / (norms + 1e-7), 1)


def _norms(a, power, axes):
    """Return the norms over these axes. The derivative at 0 is 0."""
    if power == math.inf:
        return jnp.max(jnp.abs(a), axes, keepdims=True)
    total = jnp.sum(a * a if power == 2 else jnp.abs(a) ** power, axes, keepdims=True)
    return jnp.where(total > 0, jnp.where(total > 0, total, 1) ** (1 / power), 0)
