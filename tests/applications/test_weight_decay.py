"""The augmentation against exact turns and moves, the CNN against JAX's convolution, and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from matplotlib.figure import Figure

import bilevel as bl
import recorded
from bilevel.applications import weight_decay as app
from bilevel.data.examples import Examples


@pytest.fixture(autouse=True)
def bundled(monkeypatch, tmp_path):
    monkeypatch.delenv("BILEVEL_DATA", raising=False)
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path))


@pytest.mark.slow
def test_augmentation_turns_and_moves(monkeypatch):
    """With the random numbers fixed: nothing at strength zero, a quarter turn, and a move by whole pixels."""
    images = jnp.asarray(np.random.default_rng(0).random((1, app.SIDE, app.SIDE)))
    monkeypatch.setattr(jax.random, "normal", lambda key, shape, dtype: jnp.ones(shape, dtype))
    done = lambda *strength: np.asarray(app.moved(images, jnp.array(strength), jax.random.key(0)))[0]
    image = np.asarray(images[0])
    np.testing.assert_allclose(done(0.0, 0.0), image, atol=1e-12)
    np.testing.assert_allclose(done(np.pi / 2, 0.0), np.rot90(image, -1), atol=1e-9)
    np.testing.assert_allclose(done(0.0, 2.0)[:-2, :-2], image[2:, 2:], atol=1e-12)


@pytest.mark.slow
def test_patches_times_a_matrix_are_a_convolution():
    rng = np.random.default_rng(0)
    for side in (7, 14):
        images, W = jnp.asarray(rng.random((2, side, side, 3))), jnp.asarray(rng.random((27, 4)))
        lines = ("NHWC", "HWIO", "NHWC")
        peer = lax.conv_general_dilated(
            images, W.reshape(3, 3, 3, 4), (2, 2), [(1, 1)] * 2, dimension_numbers=lines
        )
        np.testing.assert_allclose(app.patches(images) @ W, peer, rtol=1e-10)


@pytest.mark.slow
def test_the_method_finds_the_slope_of_training(monkeypatch):
    """Three steps with momentum, in double precision: RTHO's last hypergradient by differences, in all directions."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        app, "moved", lambda images, strength, key: images + strength[0] * strength[1] * images**2
    )
    examples = lambda n: Examples(rng.random((n, 2, 2)), rng.integers(0, 10, n).astype(np.int32))
    y0 = [(rng.normal(size=shape), np.zeros(shape[1])) for shape in ((4, 5), (5, 5), (5, 10))]
    problem, data = app.problem_of(app.mlp), bl.Batch(inner=examples(8), outer=examples(8))
    x = app.Hyper(rng.normal(size=3) - 2, rng.normal(size=2), np.float64(-2))
    y0, data, x = jax.tree.map(jnp.asarray, (y0, data, x))
    still = bl.solvers.rtho(
        problem, inner=optax.sgd(1.0, momentum=app.MOMENTUM), outer=1e-300
    )  # x stays where it is
    run = bl.start(still, x, y0, data)
    found = bl.scan(still, run, data, steps=3, record=lambda state, info: info.hypergradient)[1]

    flat, back = jax.flatten_util.ravel_pytree(x)

    @jax.jit
    def after(flat):
        x, y = back(flat), y0
        m = jax.tree.map(jnp.zeros_like, y0)
        for _ in range(3):  # momentum by hand
            slope = jax.grad(lambda y: problem.inner(x, y, data.inner, key=jax.random.key(0)))(y)
            m = jax.tree.map(lambda a, b: app.MOMENTUM * a + b, m, slope)
            y = jax.tree.map(lambda a, b: a - b, y, m)
        return problem.outer(x, y, data.outer)

    slopes = [(after(flat + e) - after(flat - e)) / 2e-5 for e in 1e-5 * jnp.eye(6)]
    last = jax.flatten_util.ravel_pytree(jax.tree.map(lambda a: a[-1], found))[0]
    np.testing.assert_allclose(last, slopes, rtol=1e-5, atol=1e-9)
    assert abs(last[-1]) > 1e-3  # the learning rate has a slope


@pytest.mark.slow
@pytest.mark.parametrize("model", app.MODELS)
def test_the_random_search_has_at_least_the_budget_of_the_method(model):
    """By XLA's count, between 13 and 14 training steps in one step, as weight-decay.md says."""
    real = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    rows = lambda n: Examples(real(n, app.SIDE, app.SIDE), jax.ShapeDtypeStruct((n,), jnp.int32))
    data = bl.Batch(inner=rows(app.BATCH), outer=rows(2 * app.BATCH), key=jax.random.key(0))
    problem, x, y = app.PROBLEMS[model], app.single(app.START), app.initial(model, 0)
    momentum = optax.sgd(1.0, momentum=app.MOMENTUM)

    def training_step(x, y, speed, data):
        return momentum.update(jax.grad(problem.g, 1)(x, y, data), speed, y)

    operations = lambda step, *of: jax.jit(step).lower(*of).cost_analysis()["flops"]
    with jax.numpy_dtype_promotion("standard"):  # optax.adam
        method = app.solver(problem)
        theirs = operations(method.step, jax.eval_shape(method.init, x, y, data), data)
        assert 13 < theirs / operations(training_step, x, y, momentum.init(y), data) < 14 == app.TRIES


def test_draws_stay_in_the_box():
    for x in app.drawn(0, 20):
        jax.tree.map(np.testing.assert_array_equal, app.within(app.single(x)), app.single(x))


@pytest.mark.slow
def test_two_steps_of_everything(monkeypatch):
    for name, smaller in dict(STEPS=2, TRAIN=100, VALID=100, TEST=50, BATCH=20).items():
        monkeypatch.setattr(app, name, smaller)
    with jax.numpy_dtype_promotion("standard"):  # optax.adam
        outcome = app.trial(0, 2, False)
        wrong = app.task(0).measure(app.single(app.DEFAULT))
    np.testing.assert_allclose(1 - wrong, outcome.scores["MLP, defaults"]["test accuracy"], rtol=1e-6)
    recorded.check("weight-decay", outcome.scores)
    assert all(np.isfinite(score) for row in outcome.scores.values() for score in row.values())
    figure = Figure()
    app.draw(figure, [outcome, outcome])
    assert len(figure.axes) == 6
