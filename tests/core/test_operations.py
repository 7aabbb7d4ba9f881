"""The rough operation count, against counts by hand and against XLA's on a real step."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from bilevel.operations import operations


def count(function, *shapes):
    return operations(jax.make_jaxpr(function)(*(jnp.zeros(shape) for shape in shapes)).jaxpr)


def test_products_loops_and_branches_by_hand():
    product = 2 * 3 * 4 * 5
    assert count(lambda a, b: a @ b, (3, 4), (4, 5)) == product
    assert count(jax.jit(lambda a, b: a @ b), (3, 4), (4, 5)) == product
    assert count(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (7, 3, 4), (7, 4, 5)) == 7 * product
    loop = lambda a: lax.scan(lambda c, _: (c @ a, None), a, length=10)[0]
    assert count(loop, (6, 6)) == 10 * 2 * 6**3
    branch = lambda a: lax.cond(a[0, 0] > 0, lambda: a @ a, lambda: a)
    assert count(branch, (6, 6)) == pytest.approx(2 * 6**3, abs=10)


def test_convolutions_by_hand():
    convolve = lambda x, w: lax.conv(x, w, (1, 1), "VALID")
    assert count(convolve, (2, 3, 10, 10), (5, 3, 3, 3)) == 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)


def test_a_gradient_step_of_a_network_agrees_with_xla():
    def loss(y, a, b):
        return jnp.mean((jax.nn.relu(a @ y[0]) @ y[1] - b) ** 2)

    gradient = jax.grad(loss)
    shapes = ([jnp.zeros((64, 128)), jnp.zeros((128, 8))], jnp.zeros((256, 64)), jnp.zeros((256, 8)))
    by_xla = jax.jit(gradient).lower(*shapes).compile().cost_analysis()["flops"]
    ours = operations(jax.make_jaxpr(gradient)(*shapes).jaxpr)
    assert ours == pytest.approx(by_xla, rel=0.2)
