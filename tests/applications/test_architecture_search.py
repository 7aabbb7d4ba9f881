"""Architecture search: the network against one of plain convolutions, and what becomes of a mixture."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from matplotlib.figure import Figure

import recorded
from bilevel.applications import architecture_search as app


@pytest.fixture(scope="module")
def network():
    return jax.tree.map(lambda part: jnp.asarray(part, jnp.float32), app.initial(0))


@pytest.fixture(scope="module")
def images():
    return jnp.asarray(np.random.default_rng(0).uniform(size=(3, 196)), jnp.float32)


def plain_logits(mixture, y, images):
    """Operation by operation and edge by edge, with XLA's own convolutions and windows."""
    convolved = lambda h, kernel, stride=1: lax.conv_general_dilated(
        h, kernel, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    C = app.CHANNELS
    nodes = {0: jax.nn.relu(convolved(images.reshape(-1, 14, 14, 1), y["stem"].reshape(3, 3, 1, C), 2))}
    for j in range(1, app.NODES):
        total = jnp.zeros_like(nodes[0])
        for edge, (i, end) in enumerate(app.EDGES):
            if end != j:
                continue
            h = nodes[i] / jnp.sqrt(jnp.mean(nodes[i] ** 2, axis=(1, 2, 3), keepdims=True) + 1e-5)
            window = lax.reduce_window(h, np.float32(0), lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
            small, large = y["1×1"][edge], y["3×3"][edge].reshape(3, 3, C, C)
            made = [0 * h, h, window / 9, jax.nn.relu(h) @ small, convolved(jax.nn.relu(h), large)]
            total = total + sum(w * o for w, o in zip(mixture[edge], made, strict=True))
        nodes[j] = total
    features = np.concatenate([nodes[j] for j in range(1, app.NODES)], axis=-1)
    parts = [slice(0, 2), slice(2, 5), slice(5, 7)]
    ninths = [features[:, rows, columns].mean(axis=(1, 2)) for rows in parts for columns in parts]
    return np.stack(ninths, axis=1).reshape(len(images), -1) @ y["classes"]


@pytest.mark.slow
def test_the_network_is_one_of_plain_convolutions(network, images):
    mixture = jax.nn.softmax(jnp.asarray(np.random.default_rng(1).normal(size=(6, 5)), jnp.float32), axis=1)
    found = jax.jit(app.logits)(mixture, network, images)
    assert np.allclose(found, plain_logits(mixture, network, images), atol=1e-5)


@pytest.mark.slow
def test_a_cell_depends_on_the_kernels_that_it_uses_and_on_no_others(network, images):
    cell = np.array([4, 3, 0, 1, 4, 2])
    batch = app.Examples(images, jnp.arange(3, dtype=jnp.int32))
    slope = jax.jit(jax.grad(app.cross_entropy, argnums=1))
    gradient = slope(jax.nn.one_hot(cell, 5, dtype=jnp.float32), network, batch)
    moved = lambda name: [edge for edge in range(6) if np.abs(gradient[name][edge]).max() > 0]
    assert moved("3×3") == [0, 4]
    assert moved("1×1") == [1]
    assert (
        app.weights_of(cell) == sum(gradient["3×3"][edge].size for edge in (0, 4)) + gradient["1×1"][1].size
    )


def test_the_strongest_operations_and_edges_are_kept():
    x = np.zeros((6, 5))
    for (edge, operation), height in {
        (0, 4): 1,
        (1, 1): 3,
        (2, 3): 2,
        (3, 2): 1,
        (4, 4): 4,
        (5, 1): 1,
    }.items():
        x[edge, operation] = height
    x[0, 0] = 9  # none is never chosen, but its weight weakens the others
    assert app.EDGES == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert app.discretized(x).tolist() == [
        4,
        1,
        3,
        2,
        4,
        0,
    ]  # of the three edges to the last node 2 → 3 is weakest


def test_random_cells_have_the_size_that_they_should(as_users_see_it):
    rng, like = np.random.default_rng(0), np.array([4, 4, 0, 1, 3, 2])
    cells = [app.random_cell(rng, like) for _ in range(20)]
    assert all(sorted(cell) == sorted(like) for cell in cells)
    assert len({tuple(cell) for cell in cells}) > 10
    for cell in [*cells, app.random_cell(rng)]:
        into = [sum(cell[edge] > 0 for edge, (_, end) in enumerate(app.EDGES) if end == j) for j in (1, 2, 3)]
        assert into == [1, 2, 2]


@pytest.mark.slow
def test_a_short_trial_and_its_picture(monkeypatch):
    monkeypatch.setattr(app, "SIZES", (80, 80, 50))
    methods = app.methods(app.PROBLEM)
    assert set(methods) == {"AID", "ITD", "DARTS", "DARTS, first order"}
    some = {
        name: methods[name] for name in ("AID", "DARTS")
    }  # the others would take as long again to compile
    monkeypatch.setattr(app, "methods", lambda problem: some)
    with jax.numpy_dtype_promotion("standard"):  # for optax.adam
        outcome = app.APPLICATION.trial(0, 2, False)
        monkeypatch.setattr(app, "STEPS", 2)
        cell = outcome.seen["AID"]
        x = 10.0 * jnp.eye(len(app.OPERATIONS), dtype=jnp.float32)[cell]
        np.testing.assert_array_equal(app.discretized(x), cell)
        wrong = app.task(0).measure(x)
    np.testing.assert_allclose(100 * (1 - wrong), outcome.scores["AID"]["test accuracy %"], rtol=1e-6)
    recorded.check("architecture-search", outcome.scores | dict.fromkeys(methods, outcome.scores["AID"]))
    assert all(np.isfinite(list(each.values())).all() for each in outcome.scores.values())
    figure = Figure()
    app.APPLICATION.draw(figure, [outcome])
    assert len(figure.axes) == 2
