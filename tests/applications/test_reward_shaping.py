"""Reward shaping: three derivations of one gradient, and the agent's values as what they are meant to be."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from matplotlib.figure import Figure

import bilevel as bl
import recorded
from bilevel.applications import reward_shaping as app


@pytest.fixture(scope="module")
def world():
    return jax.tree.map(lambda part: jnp.asarray(part, jnp.float64), app.world(0))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).normal(size=app.SIDE**2) * 0.05


def test_every_move_leads_somewhere_and_the_goal_holds(world):
    assert np.allclose(world.P.sum(axis=2), 1, atol=1e-6)
    assert (np.asarray(world.P[-1, :, -1]) == 1).all()
    assert (np.asarray(world.r[-1]) == 0).all()


def test_the_closed_form_is_the_slope_of_its_own_value(world, x):
    gradient = app.closed_form(x, world)[1]
    for direction in np.random.default_rng(2).normal(size=(3, len(x))):
        h = 1e-5
        rise = app.closed_form(x + h * direction, world)[0] - app.closed_form(x - h * direction, world)[0]
        assert np.isclose(rise / (2 * h), gradient @ direction, rtol=1e-6)


@pytest.mark.slow
def test_single_loop_aid_arrives_at_the_closed_form(world, x):
    still = bl.aid(app.PROBLEM, inner=0.3, adjoint=0.3, outer=1e-30)  # x stays where it is; y and v settle
    data = bl.Batch(inner=world, outer=world)
    seen = lambda state, info: {"h": info.hypergradient}
    trace = bl.run(still, jnp.asarray(x), jnp.zeros(len(x)), data=data, steps=3000, record=seen).trace
    value, gradient = app.closed_form(x, world)
    assert np.linalg.norm(trace["h"][-1] - gradient) < 1e-3 * np.linalg.norm(gradient)
    assert np.isclose(trace["outer_value"][-1], value, rtol=1e-3)


def test_the_agent_could_not_do_better(world, x):
    """y* is the value of its own policy, entropy against the uniform one included, and no other policy has more."""
    P, r, _, paid = (np.asarray(part) for part in world)

    def value(pi):
        surplus = np.sum(pi * (r + paid[:, None] * (P @ x) - app.TAU * np.log(pi * app.ACTIONS)), axis=1)
        return np.linalg.solve(np.eye(len(r)) - app.GAMMA * np.einsum("sa,sat->st", pi, P), surplus)

    y = app.soft_values(jnp.asarray(x), world, sweeps=200)
    pi = np.asarray(app.policy(jnp.asarray(x), y, world))
    assert np.allclose(value(pi), y, atol=1e-8)
    for seed in range(3):
        other = pi * np.random.default_rng(seed).uniform(0.5, 1.5, pi.shape)
        assert (value(other / other.sum(axis=1, keepdims=True)) <= np.asarray(y) + 1e-12).all()


@pytest.mark.slow
def test_the_return_is_the_sum_of_discounted_rewards(world):
    pi = jnp.full((app.SIDE**2, app.ACTIONS), 0.25)
    P, r, at = np.einsum("sa,sat->st", pi, world.P), np.sum(pi * world.r, axis=1), np.asarray(world.rho)
    total = 0.0
    for t in range(1500):
        total += app.DELTA**t * at @ r
        at = at @ P
    assert np.isclose(total, app.true_return(pi, world))


def test_a_bonus_put_down_carelessly_is_worse_than_none(world):
    half_way = np.eye(app.SIDE**2)[3 * app.SIDE + 3] * app.BUDGET
    assert -app.closed_form(half_way, world)[0] < 0 < -app.closed_form(0 * half_way, world)[0]


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # for optax
def test_the_projection_is_optax_own():
    for scale in (0.001, 0.1, 10.0):  # the first is inside
        x = scale * np.random.default_rng(0).normal(size=36)
        there = optax.projections.projection_l1_ball(jnp.asarray(x), app.BUDGET)
        assert np.allclose(app.within_budget(jnp.asarray(x)), there, atol=1e-9)


@pytest.mark.slow
def test_hill_climbing_never_descends_and_stays_within_the_budget(world, x):
    value = lambda x: jnp.sum((x - 1.0) ** 2)
    found = app.hill_climbing(value, jnp.asarray(x), 0, 50)
    assert value(found) < value(x)
    assert jnp.sum(jnp.abs(found)) <= app.BUDGET + 1e-9


@pytest.mark.slow
def test_a_short_trial_and_its_picture():
    outcome = app.APPLICATION.trial(0, 2, False)
    recorded.check("reward-shaping", outcome.scores)
    assert all(np.isfinite(list(each.values())).all() for each in outcome.scores.values())
    figure = Figure()
    app.APPLICATION.draw(figure, [outcome])
    assert len(figure.axes) == 4  # two maps, their colors, the returns
