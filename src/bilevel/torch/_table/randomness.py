"""Random tensors and dropout. As in torch, a sample has no derivative in the arguments of its distribution."""

import jax.numpy as jnp
from jax import lax, random

from bilevel.torch._table.registry import canonical, default_float, promoted, register, wide

for name, draw in {"rand": random.uniform, "randn": random.normal}.items():

    def floats(key, size, dtype=None, draw=draw):
        return draw(key, tuple(size), dtype or default_float())

    def floats_like(key, a, dtype=None, draw=draw):
        return draw(key, a.shape, dtype or a.dtype)

    register(f"aten.{name}.default", random=True)(floats)
    register(f"aten.{name}_like.default", random=True)(floats_like)


def integers(key, shape, low, high):
    return random.randint(key, tuple(shape), low, high, canonical("int64"))


for name, function in {
    "randint.default": lambda key, high, size, dtype=None: integers(key, size, 0, high),
    "randint.low": lambda key, low, high, size, dtype=None: integers(key, size, low, high),
    "randint_like.default": lambda key, a, high, dtype=None: integers(key, a.shape, 0, high),
    "randint_like.low_dtype": lambda key, a, low, high, dtype=None: integers(key, a.shape, low, high),
    "random.to": lambda key, a, high: integers(key, a.shape, 0, high),
    "randperm.default": lambda key, n, dtype=None: random.permutation(key, n),
    "uniform.default": lambda key, a, low=0.0, high=1.0: random.uniform(key, a.shape, a.dtype, low, high),
    "normal_functional.default": lambda key, a, mean=0.0, std=1.0: (
        mean + std * random.normal(key, a.shape, a.dtype)
    ),
    "log_normal.default": lambda key, a, mean=1.0, std=2.0: jnp.exp(
        mean + std * random.normal(key, a.shape, a.dtype)
    ),
    "cauchy.default": lambda key, a, median=0.0, scale=1.0: (
        median + scale * random.cauchy(key, a.shape, a.dtype)
    ),
    "geometric.default": lambda key, a, p: random.geometric(key, p, a.shape),
    "poisson.default": lambda key, rate: random.poisson(key, lax.stop_gradient(rate)),
    "binomial.default": lambda key, count, p: random.binomial(key, *lax.stop_gradient((count, p))),
    "_standard_gamma.default": random.gamma,
    "bernoulli.default": lambda key, p: random.bernoulli(key, wide(p)),
    "bernoulli.Tensor": lambda key, a, p: random.bernoulli(key, wide(p), a.shape),
    "bernoulli.p": lambda key, a, p=0.5: random.bernoulli(key, jnp.float32(p), a.shape),
}.items():
    register(f"aten.{name}", random=True)(function)


@register("aten.normal.Tensor_Tensor", "aten.normal.Tensor_float", "aten.normal.float_Tensor", random=True)
def normal(key, mean, std=1.0):
    mean, std = jnp.broadcast_arrays(*lax.stop_gradient(promoted(mean, std)))
    return mean + std * random.normal(key, mean.shape, mean.dtype)


@register("aten.exponential.default", random=True)
def exponential(key, a, rate=1.0):
    drawn = random.exponential(key, a.shape, a.dtype)
    return jnp.maximum(drawn, jnp.finfo(a.dtype).eps / 2) / rate  # its logarithm is finite


@register("aten.multinomial.default", random=True)
def multinomial(key, weights, samples, replacement=False):
    logits = jnp.log(lax.stop_gradient(wide(weights)))
    if replacement:
        drawn = random.categorical(key, logits, shape=(samples, *logits.shape[:-1]))
        return jnp.moveaxis(drawn, 0, -1)
    return lax.top_k(logits + random.gumbel(key, logits.shape, logits.dtype), samples)[1]


@register("aten.native_dropout.default", random=True)
def native_dropout(key, a, p, train):
    if not train:
        return a, jnp.ones(a.shape, bool)
    kept = random.bernoulli(key, jnp.float32(1 - p), a.shape)
    return jnp.where(kept, a * (1 / (1 - p) if p < 1 else 0), 0), kept


@register("aten.rrelu_with_noise_functional.default", random=True)
def rrelu(key, a, noise, low=1 / 8, high=1 / 3, training=False):
    if not training:
        return jnp.where(a > 0, a, a * ((low + high) / 2)), noise
    noise = jnp.where(a > 0, 1, random.uniform(key, a.shape, a.dtype, low, high))
    return a * noise, noise
