"""The networks of networks_torch.py as one would write them in JAX, with the names of torch's parameters.

Each is a function of `(y, state, inputs, train)` that returns the outputs and the new state.
"""

import functools

import jax
import jax.numpy as jnp
import optax
from jax import lax


def linear(y, name, h):
    return h @ y[f"{name}.weight"].T + y[f"{name}.bias"]


def layer_norm(y, name, h):
    mean, var = h.mean(-1, keepdims=True), h.var(-1, keepdims=True)
    return (h - mean) * lax.rsqrt(var + 1e-5) * y[f"{name}.weight"] + y[f"{name}.bias"]


def batch_norm(y, state, name, h, train):
    """Return the normalized values and the statistics with a momentum of 0.1."""
    axes = (0, *range(2, h.ndim))
    wide = lambda each: each.reshape(-1, *[1] * (h.ndim - 2))
    running = {
        each: f"model.{name}.{each}" for each in ("running_mean", "running_var", "num_batches_tracked")
    }
    mean, var, count = (state[each] for each in running.values())
    new = {}
    if train:
        rows = h.size // len(var)
        mixed = lambda old, value: 0.9 * old + 0.1 * lax.stop_gradient(value)
        old, mean, var = (mean, var), h.mean(axes), h.var(axes)
        values = mixed(old[0], mean), mixed(old[1], var * rows / (rows - 1)), count + 1
        new = dict(zip(running.values(), values, strict=True))
    scale = lax.rsqrt(var + 1e-5) * y[f"{name}.weight"]
    return (h - wide(mean)) * wide(scale) + wide(y[f"{name}.bias"]), new


def mlp(y, state, inputs, train):
    h, first = batch_norm(y, state, "1", linear(y, "0", inputs), train)
    h, second = batch_norm(y, state, "4", linear(y, "3", jax.nn.silu(h)), train)
    return linear(y, "6", jax.nn.silu(h)), state | first | second


def cnn(y, state, inputs, train):
    h, names = inputs, ("NCHW", "OIHW", "NCHW")
    for layer in (0, 4, 8):
        h = lax.conv_general_dilated(h, y[f"{layer}.weight"], (1, 1), "SAME", dimension_numbers=names)
        h, new = batch_norm(y, state, str(layer + 1), h + y[f"{layer}.bias"][:, None, None], train)
        n, channels, height, width = h.shape
        h = jax.nn.silu(h).reshape(n, channels, height // 2, 2, width // 2, 2).mean((3, 5))
        state = state | new
    return linear(y, "14", h.mean((2, 3))), state


def gpt(y, state, tokens, train, heads):
    n, time = tokens.shape
    h = y["tokens.weight"][tokens] + y["places.weight"][:time]
    width = h.shape[-1]
    mask = jnp.tril(jnp.ones((time, time), bool))
    layers = max(int(name.split(".")[1]) for name in y if name.startswith("blocks")) + 1
    for block in (f"blocks.{i}" for i in range(layers)):
        split = lambda part: part.reshape(n, time, heads, width // heads).transpose(0, 2, 1, 3)
        q, k, v = map(split, jnp.split(linear(y, f"{block}.mix", layer_norm(y, f"{block}.norm1", h)), 3, -1))
        scores = jnp.where(mask, q @ k.swapaxes(2, 3) / (width // heads) ** 0.5, -jnp.inf)
        mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(n, time, width)
        h = h + linear(y, f"{block}.out", mixed)
        wide = jax.nn.gelu(linear(y, f"{block}.wide", layer_norm(y, f"{block}.norm2", h)))
        h = h + linear(y, f"{block}.narrow", wide)
    return (layer_norm(y, "norm", h) @ y["tokens.weight"].T).swapaxes(1, 2), state


def lstm(y, state, sequences, train):
    h = sequences.swapaxes(0, 1)
    for layer in (0, 1):
        into, within, b, c = (
            y[f"layers.{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )

        def step(carry, given, within=within):
            hidden, cell = carry
            i, f, g, o = jnp.split(given + hidden @ within.T, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zero = jnp.zeros((h.shape[1], within.shape[1]), h.dtype)
        _, h = lax.scan(step, (zero, zero), h @ into.T + b + c)
    return linear(y, "head", h[-1]), state


def networks(heads: int):
    return {"mlp": mlp, "cnn": cnn, "gpt": functools.partial(gpt, heads=heads), "lstm": lstm}


def per_example(outputs, labels):
    losses = optax.softmax_cross_entropy_with_integer_labels(jnp.moveaxis(outputs, 1, -1), labels)
    return losses.reshape(len(labels), -1).mean(1)


def losses(network, stateful: bool):
    """Return the inner and the outer loss of data reweighting."""

    def weighted(x, y, batch, state):
        inputs, labels, rows = batch
        outputs, new = network(y, state, inputs, True)
        return (jax.nn.sigmoid(x[rows]) * per_example(outputs, labels)).mean(), new

    def plain(x, y, batch, state):
        inputs, labels = batch
        return per_example(network(y, state, inputs, False)[0], labels).mean()

    def inner(x, y, batch, *, state):
        loss, new = weighted(x, y, batch, state)
        return loss, {}, new

    def outer(x, y, batch, *, state):
        return plain(x, y, batch, state)

    if stateful:
        return inner, outer
    return lambda x, y, batch: weighted(x, y, batch, {})[0], lambda x, y, batch: plain(x, y, batch, {})
