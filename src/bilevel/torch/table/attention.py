"""Attention."""

import math

import jax.numpy as jnp
from jax import lax

from bilevel.torch.table.randomness import native_dropout
from bilevel.torch.table.registry import register, wide


def attention(key, q, k, v, mask=None, rate=0.0, causal=False, scale=None, grouped=False):
    """Return the attention and its weights as torch's math kernel computes them, and the logarithms of the totals."""
    out_type, (q, k, v) = q.dtype, (wide(each) for each in (q, k, v))
    if grouped:
        k, v = (jnp.repeat(each, q.shape[-3] // each.shape[-3], -3) for each in (k, v))
    scores = (q @ k.swapaxes(-1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        mask = jnp.tri(*scores.shape[-2:], dtype=bool)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
    peak = lax.stop_gradient(jnp.max(scores, -1, keepdims=True, initial=-jnp.inf))
    masked = peak == -jnp.inf  # torch returns zeros for a query without keys
    weights = jnp.exp(scores - jnp.where(masked, 0, peak))
    total = jnp.sum(weights, -1, keepdims=True)
    weights = weights / jnp.where(masked, 1, total)
    if rate > 0:
        weights, _ = native_dropout(key, weights, rate, True)
    return (weights @ v).astype(out_type), weights, (jnp.log(total) + peak)[..., 0]


@register("aten.scaled_dot_product_attention.default", random=True)
def scaled_dot_product_attention(
    key, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    return attention(key, q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)[0]


@register("aten._scaled_dot_product_attention_math.default", random=True)
def scaled_dot_product_attention_math(
    key,
    q,
    k,
    v,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    dropout_mask=None,
    scale=None,
    enable_gqa=False,
):
    return attention(key, q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)[:2]


@register("aten._scaled_dot_product_flash_attention_for_cpu.default", random=True)
def flash_attention_for_cpu(key, q, k, v, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None):
    out, _, totals = attention(key, q, k, v, attn_mask, dropout_p, is_causal, scale)
    return out, totals
