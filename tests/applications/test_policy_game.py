"""The policy game: sampled derivatives against exact ones, over every trajectory that there is."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import bilevel as bl
import recorded
from bilevel.applications import policy_game as app
from bilevel.theory.verification.reference import exact


@pytest.fixture(scope="module")
def game():
    return jax.tree.map(lambda part: jnp.asarray(part, jnp.float64), app.game(0))


@pytest.fixture(scope="module")
def point():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=3)), jnp.asarray(rng.normal(size=(2, 3)))


def every_trajectory(x, y, game):
    """All of two periods, with their probabilities, by multiplication in NumPy."""
    chance = lambda logit, action: 1 / (1 + np.exp(-logit if action else logit))
    states, actions = range(3), (0, 1)
    found, probabilities = [], []
    for s0, a0, b0, s1, a1, b1 in product(states, actions, actions, states, actions, actions):
        p = chance(x[s0], a0) * chance(y[0, s0], b0) * np.asarray(game.P)[s0, a0, b0, s1] / 3
        probabilities.append(p * chance(x[s1], a1) * chance(y[1, s1], b1))
        found.append(((s0, s1), (a0, a1), (b0, b1)))
    s, a, b = (jnp.asarray(each, jnp.int32).T for each in zip(*found, strict=True))
    return app.Played(s, a, b), jnp.asarray(np.array(probabilities))


def derivatives(function, x, y):
    """The value, all first derivatives, and the second ones that methods use."""
    both = (0, 1)
    curvature = jax.jacfwd(jax.grad(function, argnums=1), argnums=both)
    return jax.jit(lambda *at: [function(*at), *jax.grad(function, argnums=both)(*at), *curvature(*at)])(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("player", [0, 1], ids=["leader", "follower"])
def test_derivatives_are_unbiased_to_second_order(game, point, player):
    x, y = point
    played, p = every_trajectory(x, y, game)
    assert np.isclose(p.sum(), 1, atol=1e-6)
    surrogate = lambda box: lambda x, y: p @ app.dice(x, y, game, played, box)[player]
    truth = derivatives(lambda x, y: app.returns(x, y, game)[player], x, y)
    for found, right in zip(derivatives(surrogate(app.box), x, y), truth, strict=True):
        assert np.allclose(found, right, atol=1e-6)  # the probabilities were made in single precision
    usual = derivatives(surrogate(app.first_order_box), x, y)
    assert all(
        np.allclose(found, right, atol=1e-6) for found, right in zip(usual[:3], truth[:3], strict=True)
    )
    assert not any(
        np.allclose(found, right, atol=1e-2) for found, right in zip(usual[3:], truth[3:], strict=True)
    )


@pytest.mark.slow
def test_what_is_played_has_the_right_frequencies(game, point):
    x, y = point
    played = app.play(x, y, game, jax.random.key(0), samples=20_000)
    everything, p = every_trajectory(x, y, game)
    name = lambda t: np.ravel_multi_index([*t.s, *t.a, *t.b], (3, 3, 2, 2, 2, 2))
    seen = np.bincount(name(played), minlength=144) / 20_000
    expected = np.bincount(name(everything), weights=np.asarray(p), minlength=144)
    assert (np.abs(seen - expected) <= 5 * np.sqrt(expected / 20_000) + 1e-12).all()


@pytest.mark.slow
def test_the_best_response_is_one(game):
    x = jnp.asarray([0.3, -0.2, 1.0])
    y = app.best_response(x, game)
    own = jax.jit(lambda y: app.returns(x, y, game)[1])
    assert np.allclose(jax.jit(jax.grad(own))(y), 0, atol=1e-8)
    for seed in range(3):
        assert own(y + 0.1 * np.random.default_rng(seed).normal(size=y.shape)) < own(y)


@pytest.mark.slow
def test_the_hypergradient_is_that_of_backward_induction(game):
    x = jnp.asarray([0.3, -0.2, 1.0])
    data, respond = bl.Batch(inner=game, outer=game), lambda x: app.best_response(x, game)
    implicit = lambda x: exact(app.EXACT, x, jnp.zeros((app.PERIODS, 3)), data, respond).hypergradient
    found, direct = jax.jit(lambda x: (implicit(x), jax.grad(app.committed)(x, game)))(x)
    assert np.allclose(found, direct, atol=1e-6)


def test_brute_force_finds_a_minimum(game):
    x = jnp.asarray(app.brute_force(game, points=15))
    value = jax.jit(lambda x: app.committed(x, game))
    around = [float(value(x + 0.05 * step)) for unit in np.eye(3) for step in (-unit, unit)]
    assert min(around) > value(x)
    assert float(value(x)) < min(
        float(value(jnp.asarray(far))) for far in np.random.default_rng(0).normal(size=(50, 3))
    )


@pytest.mark.slow
def test_a_short_trial_and_its_picture():
    outcome = app.APPLICATION.trial(0, 2, False)
    recorded.check("policy-game", outcome.scores)
    assert all(np.isfinite(list(each.values())).all() for each in outcome.scores.values())
    figure = Figure(layout="constrained")
    app.APPLICATION.draw(figure, [outcome])
    assert len(figure.axes) == 2
