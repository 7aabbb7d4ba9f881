"""Attention as torch's math kernel computes it, the one that torch differentiates twice."""

import math

import jax.numpy as jnp
from jax import lax

from bilevel.torch._table.randomness import native_dropout
from bilevel.torch._table.registry import register, wide


def _drops(q, k, v, attn_mask=None, dropout_p=0.0, *others, **named):
    return dropout_p > 0


@register("aten.scaled_dot_product_attention.default", random=_drops)
def attention(key, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    q, k, v = (wide(each) for each in (q, k, v))
    if enable_gqa:
        k, v = (jnp.repeat(each, q.shape[-3] // each.shape[-3], -3) for each in (k, v))
    scores = (q @ k.swapaxes(-1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = jnp.tri(*scores.shape[-2:], dtype=bool)
    if attn_mask is not None:
        is_choice = attn_mask.dtype == bool
        scores = jnp.where(attn_mask, scores, -jnp.inf) if is_choice else scores + attn_mask
    peak = lax.stop_gradient(jnp.max(scores, -1, keepdims=True, initial=-jnp.inf))
    masked = peak == -jnp.inf  # torch returns zeros for a query without keys
    weights = jnp.exp(scores - jnp.where(masked, 0, peak))
    weights = weights / jnp.where(masked, 1, jnp.sum(weights, -1, keepdims=True))
    if dropout_p > 0:
        weights, _ = native_dropout(key, weights, dropout_p, True)
    return weights @ v
