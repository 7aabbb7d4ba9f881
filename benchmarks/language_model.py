"""A causal transformer in plain JAX, and the bilevel problem of weighting its training text by domain.

Parameters are float32; `dtype` is what layers compute in. The layers are stacked and run under `lax.scan`, which
compiles one of them, or are a list that Python unrolls. With `remat` each is under `jax.checkpoint`, which keeps its
input alone and computes the rest again on the way back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import bilevel as bl

DOMAINS = 8


@dataclass(frozen=True)
class Size:
    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 8192
    sequences: int = 16  # of the batch of each level
    tokens: int = 512  # of each sequence
    dtype: Any = jnp.bfloat16

    @property
    def weights(self) -> int:
        """Entries of the matrices that a token is multiplied by, the shared embedding counted once."""
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """Those, the positions and the scales of the norms."""
        return self.weights + (self.tokens + 2 * self.layers + 1) * self.width

    @property
    def forward(self) -> tuple[int, int]:
        """Operations of a forward pass over one batch: by matrices of weights, and within attention.

        2 for each weight and token; and for each pair of tokens 2·width in QKᵀ and 2·width in AV, masked or not.
        """
        rows = self.sequences * self.tokens
        return 2 * self.weights * rows, 4 * self.layers * self.width * self.tokens * rows


TINY = Size(
    layers=3, width=32, heads=4, vocabulary=64, sequences=DOMAINS, tokens=16, dtype=jnp.float32
)  # for a CPU


@dataclass(frozen=True)
class Form:
    """How the layers are written: one after the other by Python, or scanned; and each under `jax.checkpoint` or not."""

    scan: bool = True
    remat: bool = False

    def __str__(self) -> str:
        return ("scanned" if self.scan else "unrolled") + (", checkpointed" if self.remat else "")


def initial(size: Size, form: Form, seed: int = 0) -> dict:
    """Parameters on the host: normal with deviation 0.02, or less for those that write into the residual stream."""
    rng, d, small = np.random.default_rng(seed), size.width, 0.02 / (2 * size.layers) ** 0.5
    normal = lambda *shape, deviation=0.02: np.float32(deviation) * rng.standard_normal(shape, np.float32)

    def layers(*many: int) -> dict:
        return {
            "before": np.ones((*many, d), np.float32),
            "qkv": normal(*many, d, 3 * d),
            "out": normal(*many, d, d, deviation=small),
            "between": np.ones((*many, d), np.float32),
            "up": normal(*many, d, 4 * d),
            "down": normal(*many, 4 * d, d, deviation=small),
        }

    return {
        "embedding": normal(size.vocabulary, d),
        "position": normal(size.tokens, d),
        "layers": layers(size.layers) if form.scan else [layers() for _ in range(size.layers)],
        "last": np.ones(d, np.float32),
    }


def normalized(h: jax.Array, scale: jax.Array) -> jax.Array:
    wide = h.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale[None, None]).astype(h.dtype)


def layer(h: jax.Array, w: dict, heads: int) -> jax.Array:
    w = {name: a if a.ndim == 1 else a.astype(h.dtype) for name, a in w.items()}
    rows, tokens, width = h.shape
    q, k, v = jnp.split(normalized(h, w["before"]) @ w["qkv"], 3, axis=-1)
    split = lambda a: a.reshape(rows, tokens, heads, width // heads)
    scores = jnp.einsum("bqhd,bkhd->bhqk", split(q), split(k), preferred_element_type=jnp.float32)
    past = jnp.tril(jnp.ones((tokens, tokens), bool))[None, None]
    scores = jnp.where(past, scores * (width // heads) ** -0.5, -1e30)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(h.dtype), split(v))
    h = h + mixed.reshape(h.shape) @ w["out"]
    return h + jax.nn.gelu(normalized(h, w["between"]) @ w["up"]) @ w["down"]


def losses(size: Size, form: Form, y: dict, tokens: jax.Array) -> jax.Array:
    """The mean negative log-likelihood of each sequence's next tokens; `tokens` has one more than the model sees."""
    one = lambda h, w: (layer(h, w, size.heads), None)
    one = jax.checkpoint(one) if form.remat else one
    h = (y["embedding"][tokens[:, :-1]] + y["position"][None]).astype(size.dtype)
    if form.scan:
        h, _ = lax.scan(one, h, y["layers"])
    else:
        for w in y["layers"]:
            h, _ = one(h, w)
    h, table = normalized(h, y["last"]), y["embedding"].astype(size.dtype)
    logits = jnp.einsum("btd,vd->btv", h, table, preferred_element_type=jnp.float32)
    picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked, axis=-1)


def objectives(size: Size, form: Form) -> tuple[Callable, Callable]:
    """g, the training loss with a weight for each domain, 2·sigmoid(x); f, the loss on the target's text.

    Not softmax(x): on random text, where all domains are alike, its derivatives are differences in which bfloat16
    leaves few digits to compare.
    """

    def g(x: jax.Array, y: dict, batch: tuple) -> jax.Array:
        tokens, domains = batch
        weights = 2 * jax.nn.sigmoid(x)[domains]
        return jnp.mean(weights * losses(size, form, y, tokens))

    def f(x: jax.Array, y: dict, batch: jax.Array) -> jax.Array:
        return jnp.mean(losses(size, form, y, batch))

    return f, g


def text(size: Size, seed: int = 1) -> bl.Batch:
    """Random tokens: what a step costs does not depend on them."""
    rng = np.random.default_rng(seed)
    draw = lambda: rng.integers(0, size.vocabulary, (size.sequences, size.tokens + 1), np.int32)
    return bl.Batch(inner=(draw(), np.arange(size.sequences, dtype=np.int32) % DOMAINS), outer=draw())
