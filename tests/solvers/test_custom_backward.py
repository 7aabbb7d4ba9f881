"""A model with a backward pass of its own (`jax.custom_vjp`), as fused kernels have, under every kind of product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl

SOLVERS = {
    "AID": lambda problem: bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.5),
    "SOBA": lambda problem: bl.soba(problem, inner=0.1, adjoint=0.1, outer=0.5),
    "ITD": lambda problem: bl.itd(problem, inner=0.1, outer=0.5),
}


def attend(q, k, v):
    return jax.nn.softmax(q @ k.T) @ v


def backward(kept, cotangent):
    """The scores are computed again, not kept."""
    q, k, v = kept
    a = jax.nn.softmax(q @ k.T)
    da = cotangent @ v.T
    ds = a * (da - jnp.sum(da * a, axis=-1, keepdims=True))
    return ds @ k, ds.T @ q, a.T @ cotangent


fused = jax.custom_vjp(attend)
fused.defvjp(lambda q, k, v: (attend(q, k, v), (q, k, v)), backward)


def problem(attention):
    def errors(y, batch):
        return jnp.sum((attention(*(batch @ y[name] for name in "qkv")) - batch) ** 2, axis=1)

    ridge = lambda y: 0.01 * sum(jnp.sum(a**2) for a in y.values())
    return bl.Problem(
        inner=lambda x, y, batch: jnp.mean(jax.nn.sigmoid(x) * errors(y, batch)) + ridge(y),
        outer=lambda x, y, batch: jnp.mean(errors(y, batch)),
    )


def scanned(attention):
    """Within a loop over rematerialized layers."""
    layer = jax.checkpoint(lambda carry, head: (carry + attention(*head), None))
    return lambda q, k, v: jax.lax.scan(layer, jnp.zeros_like(v), (q[None], k[None], v[None]))[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "within", [lambda attention: attention, scanned, jax.jit], ids=["bare", "loop", "jit"]
)
@pytest.mark.parametrize("name", SOLVERS)
def test_it_gives_what_automatic_differentiation_gives(name, within):
    keys = jax.random.split(jax.random.key(0), 5)
    y0 = {name: 0.5 * jax.random.normal(key, (3, 3)) for name, key in zip("qkv", keys, strict=False)}
    data = bl.Batch(inner=jax.random.normal(keys[3], (6, 3)), outer=jax.random.normal(keys[4], (4, 3)))
    found = []
    for attention in (fused, attend):
        solver = SOLVERS[name](problem(within(attention)))
        state, step = solver.init(jnp.zeros(6), y0, data), jax.jit(solver.step)
        for _ in range(2):  # v is zero before the first
            state, info = step(state, data)
        found.append(info.hypergradient)
    custom, plain = found
    assert np.abs(plain).min() > 1e-6
    np.testing.assert_allclose(custom, plain, rtol=1e-9)
