"""The cheap version of `benchmarks/momentum_adversaries.py`: what docs/theory/momentum.md says where it ends."""

import jax.numpy as jnp
import momentum_adversaries as adversaries
import numpy as np
import optax
import pytest

from bilevel.theory import momentum


@pytest.mark.parametrize(("kappa", "stated"), [(30.0, 1.08), (100.0, 1.19)])
def test_alternating_curvature_makes_the_optax_rule_grow_as_stated(kappa, stated):
    c = momentum.aid(adversaries.blocks(kappa))
    grown, flat, steep = adversaries.growth(c, 1 / kappa, 21)
    assert (flat, steep) == (4, 1)
    assert grown == pytest.approx(stated, abs=0.005)
    rule, curvatures = c.step_sizes(10, 1.0).inner, [1.0] + 4 * [1 / kappa]
    y, memory, sizes = jnp.ones(()), rule.init(jnp.ones(())), []
    for _ in range(30):
        for curvature in curvatures:
            move, memory = rule.update(curvature * y, memory, y)
            y = optax.apply_updates(y, move)
        sizes.append(abs(float(y)))
    assert (sizes[-1] / sizes[9]) ** (1 / 100) == pytest.approx(grown, rel=1e-3)


def test_kinks_keep_the_heavy_ball_from_coming_to_rest():
    rng, k = np.random.default_rng(0), adversaries.blocks(100.0)
    assert 0.02 < adversaries.kinks(100.0, momentum.heavy_ball(k), rng, count=1000) < 0.1
    assert adversaries.kinks(100.0, momentum.aid(k), rng, count=1000) == 0


@pytest.mark.parametrize("rule", sorted(adversaries.RULES))
def test_no_run_on_quadratics_with_three_inner_variables_exceeds_its_bound(rule):
    rng, kappa = np.random.default_rng(1), 30.0
    c = adversaries.RULES[rule](adversaries.blocks(kappa))
    assert 0.5 < adversaries.quadratics(kappa, c, rng, count=100) <= 1
