"""Recurrent layers as `lax.scan`."""

import jax
import jax.numpy as jnp
from jax import lax

from bilevel.torch._table.randomness import native_dropout
from bilevel.torch._table.registry import register

# Cells. They take the product of the input with its weight, which layers compute for all times at once.


def _lstm(product, state, weight, bias, project=None):
    h, c = state
    i, f, g, o = jnp.split(product + _product(h, weight, bias), 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h if project is None else h @ project.T), c


def _gru(product, state, weight, bias):
    (h,) = state
    (r, z, n), (hr, hz, hn) = (jnp.split(each, 3, -1) for each in (product, _product(h, weight, bias)))
    n = jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn)
    return (n + jax.nn.sigmoid(z + hz) * (h - n),)


def _rnn(activation):
    return lambda product, state, weight, bias: (activation(product + _product(state[0], weight, bias)),)


def _product(a, weight, bias):
    return a @ weight.T if bias is None else a @ weight.T + bias


def _layers(cell):
    def layers(key, a, states, params, biases, count, rate, train, bidirectional, batch_first):
        states = states if isinstance(states, list | tuple) else [states]
        a = a.swapaxes(0, 1) if batch_first else a
        ways = 1 + bidirectional
        size, last = len(params) // (count * ways), []
        for layer in range(count):
            if layer and train and rate > 0:
                a, _ = native_dropout(jax.random.fold_in(key, layer), a, rate, True)
            outs = []
            for way in range(ways):
                number = layer * ways + way
                weights = params[number * size : (number + 1) * size]
                weights = weights if biases else [*weights[:2], None, None, *weights[2:]]
                out, end = _scan(cell, a, tuple(each[number] for each in states), *weights, reverse=way == 1)
                outs.append(out)
                last.append(end)
            a = jnp.concatenate(outs, -1)
        return (a.swapaxes(0, 1) if batch_first else a), *(
            jnp.stack(each) for each in zip(*last, strict=True)
        )

    return layers


def _drops(a, states, params, biases, count, rate, train, *others):
    return train and rate > 0 and count > 1


def _scan(cell, a, state, weight, inner_weight, bias, inner_bias, *project, reverse):
    def step(state, product):
        state = cell(product, state, inner_weight, inner_bias, *project)
        return state, state[0]

    end, out = lax.scan(step, state, _product(a, weight, bias), reverse=reverse)
    return out, end


def _single(cell):
    def single(a, state, weight, inner_weight, bias=None, inner_bias=None):
        state = state if isinstance(state, list | tuple) else [state]
        return cell(_product(a, weight, bias), state, inner_weight, inner_bias)

    return single


for _name, _cell in {
    "lstm": _lstm, "gru": _gru, "rnn_tanh": _rnn(jnp.tanh), "rnn_relu": _rnn(jax.nn.relu),
}.items():  # fmt: skip
    register(f"aten.{_name}.input", random=_drops)(_layers(_cell))
    register(f"aten.{_name}_cell.default")(_single(_cell))
