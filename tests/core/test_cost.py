"""Floating-point operations of a step, by XLA's own count: numbers that do not depend on the machine's mood."""

import jax
import jax.numpy as jnp
import optax
import pytest

import bilevel as bl

TRAIN, VALID = 2000, 500


def cross_entropy(y, images, labels):
    hidden = jax.nn.relu(images @ y["W1"] + y["b1"][None])
    logits = hidden @ y["W2"] + y["b2"][None]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


@pytest.fixture(scope="module")
def reweighting():
    """One weight per training image, an MLP 784-256-10; shapes only, nothing is computed."""
    problem = bl.Problem(
        outer=lambda x, y, batch: jnp.mean(cross_entropy(y, *batch)),
        inner=lambda x, y, batch: jnp.mean(jax.nn.sigmoid(x) * cross_entropy(y, *batch)),
    )
    real = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    whole = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
    y = {"W1": real(784, 256), "b1": real(256), "W2": real(256, 10), "b2": real(10)}
    rows = lambda n: (real(n, 784), whole(n))
    return problem, real(TRAIN), y, bl.Batch(inner=rows(TRAIN), outer=rows(VALID))


def operations(function, *shapes) -> float:
    return jax.jit(function).lower(*shapes).compile().cost_analysis()["flops"]


def gradient_step(reweighting) -> float:
    problem, x, y, data = reweighting
    step = lambda x, y, data: jax.tree.map(lambda a, g: a - 0.05 * g, y, jax.grad(problem.g, 1)(x, y, data))
    return operations(step, x, y, data)


@pytest.mark.parametrize(
    ("solver", "limit"),
    [
        (lambda p: bl.itd(p, 5e-2, 1e-3), 1.8),
        (lambda p: bl.aid(p, 5e-2, 5e-2, 1e-3), 3.3),
    ],
    ids=["itd", "aid"],
)
def test_a_step_costs_a_small_multiple_of_a_gradient_step(reweighting, solver, limit):
    problem, x, y, data = reweighting
    solver = solver(problem)
    state = jax.eval_shape(solver.init, x, y, data)
    ratio = operations(solver.step, state, data) / gradient_step(reweighting)
    assert 1.0 < ratio <= limit
