"""Several inner steps are training: each has a batch, a key and a model state of its own.

The yardstick is a loop in plain JAX over the same rows, keys and states, and `jax.grad` of it.
"""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl
from bilevel.loop.state import OBJECTIVES

ALPHA, BETA, LAMBDA, N, SEED = 0.1, 0.05, 20.0, 3, 3
rng = np.random.default_rng(0)
TRAIN = rng.normal(size=(12, 3)), rng.normal(size=12)
VALID = rng.normal(size=(10, 3)), rng.normal(size=10)
DATA = bl.Batch(inner=TRAIN, outer=VALID)
X0, Y0 = jnp.array([0.3, -0.2]), jnp.array([0.1, 0.2, -0.3])
STATE0 = {"mean": jnp.array([0.5, -0.5, 1.0]), "n": jnp.int32(0)}
close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-13)


def g(x, y, batch, *, key, state):
    """Noise on the inputs, running statistics that depend on x and y and are used, a schedule by the counter."""
    a, b = batch
    a = a + 0.3 * jax.random.normal(key, a.shape)
    mean = 0.8 * state["mean"] + 0.2 * jnp.mean(a, 0) * jnp.tanh(y) * (1 + x[0])
    fit = a @ y - b - state["mean"] @ y
    rate = 1 / (1 + 0.1 * state["n"].astype(float))
    loss = rate * jnp.mean(fit**2) + jnp.exp(x[0]) * jnp.sum(y**2) + x[1] * jnp.sum(jnp.sin(y))
    return loss, {}, {"mean": mean, "n": state["n"] + 1}


def f(x, y, batch, *, key, state):
    a, b = batch
    fit = (a + 0.1 * jax.random.normal(key, a.shape)) @ y - b
    return jnp.mean(fit**2) + jnp.sum(state["mean"] * y) + 0.1 * jnp.sum(x**2)


PROBLEM = bl.Problem(inner=g, outer=f)


class Hand:
    """Draws, keys and objectives without the library's."""

    def __init__(self, draws, step, keyed=True):
        self.draws = draws
        words = jax.random.fold_in(jax.random.key(SEED), OBJECTIVES)
        self.key = jax.random.fold_in(words, step)

    def key_of(self, t, level):
        return jax.random.fold_in(jax.random.fold_in(self.key, t), level)

    def g(self, x, y, t, state):
        loss, _, state = g(x, y, self.draws[t].inner, key=self.key_of(t, 0), state=state)
        return loss, state

    def f(self, x, y, t, state):
        return f(x, y, self.draws[t].outer, key=self.key_of(t, 1), state=state)

    def train(self, x, y, state, move=lambda y, d, m: (y - ALPHA * d, m), memory=(), steps=N):
        """(y, what the last step saw, what it returned, memory)."""
        for t in range(steps):
            seen = state
            direction, state = jax.grad(lambda y, s=seen, t=t: self.g(x, y, t, s), has_aux=True)(y)
            y, memory = move(y, direction, memory)
        return y, seen, state, memory

    def trained(self, x):
        return jax.jit(lambda x: self.train(x, Y0, STATE0))(x)


def batches(stream, count, skip=0):
    """The stream's batches, read one at a time."""
    cursor, out = stream.start(0), []
    for _ in range(skip + count):
        cursor, batch = stream.next(cursor)
        out.append(bl.Batch(inner=batch.inner, outer=batch.outer))
    return out[skip:]


SIZE = bl.Levels(inner=5, outer=4)
STREAMS = {
    "epochs": lambda: bl.epochs(DATA, SIZE, seed=1),
    "iid": lambda: bl.iid(DATA, SIZE, seed=1),
    "blocks": lambda: bl.blocks(DATA, bl.Levels(inner=4, outer=5), seed=1),
    "one level": lambda: bl.epochs(DATA, bl.Levels(inner=5, outer=None), seed=1),
    "whole": lambda: DATA,
}


def drawn(name, count, skip=0):
    return [DATA] * count if name == "whole" else batches(STREAMS[name](), count, skip)


def given(name):
    return STREAMS[name]()


def as_loader(stream, count):
    pick = lambda level: [jax.tree.map(np.asarray, getattr(b, level)) for b in batches(stream, count)]
    return bl.loaders(inner=pick("inner"), outer=pick("outer"))


class End(NamedTuple):
    y: Any
    model_state: Any
    trace: dict


def one_step(solver, data, steps=1, start=(X0, Y0)):
    """The hypergradient of the last step, and the run's end."""
    keep = lambda state, info: {"h": info.hypergradient, "outer_value": info.outer_value, **info.metrics}

    @jax.jit
    def run(data):
        begun = bl.start(solver, *start, data, seed=SEED, model_state=STATE0)
        return bl.scan(solver, begun, data, steps=steps, record=keep)

    end, trace = run(data)
    return trace["h"][-1], End(end.y, end.model, trace)


def momentum(y, d, m):
    m = 0.5 * m + d
    return y - ALPHA * m, m


@cache
def by_hand(stream, heavy=False, shared=False):
    """f after the loop by hand, its derivative, y and the state in the end."""
    hand = Hand(drawn(stream, 1) * N if shared else drawn(stream, N), 0)
    if shared:
        hand.key_of = lambda t, level: jax.random.fold_in(hand.key, level)
    how = {"move": momentum, "memory": jnp.zeros(3)} if heavy else {}

    def outer(x):
        y, seen, after, _ = hand.train(x, Y0, STATE0, **how)
        return hand.f(x, y, N - 1, seen), (y, after)

    (value, (y, after)), gradient = jax.jit(jax.value_and_grad(outer, has_aux=True))(X0)
    return value, gradient, y, after
