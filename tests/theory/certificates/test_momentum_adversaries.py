"""What docs/theory/momentum.md says of curvature that alternates, by the real rule.

The rest of `benchmarks/momentum_adversaries.py` is run, a part of it, by tests/docs/test_measured.py.
"""

import jax.numpy as jnp
import momentum_adversaries as adversaries
import optax
import pytest
from measured import MEASURED, Record

from bilevel.theory import momentum


@pytest.mark.parametrize("kappa", [30.0, 100.0])
def test_alternating_curvature_makes_the_optax_rule_grow_as_stated(kappa):
    c = momentum.aid(adversaries.blocks(kappa))
    grown, flat, steep = adversaries.growth(c, 1 / kappa, 21)
    assert (flat, steep) == (4, 1)
    (table,) = Record(MEASURED / "momentum-alternating.md").tables
    assert f"{grown:.3f} (4, 1)" == dict(row[:2] for row in table.rows)[f"{kappa:g}"]
    rule, curvatures = c.step_sizes(10, 1.0).inner, [1.0] + 4 * [1 / kappa]
    y, memory, sizes = jnp.ones(()), rule.init(jnp.ones(())), []
    for _ in range(30):
        for curvature in curvatures:
            move, memory = rule.update(curvature * y, memory, y)
            y = optax.apply_updates(y, move)
        sizes.append(abs(float(y)))
    assert (sizes[-1] / sizes[9]) ** (1 / 100) == pytest.approx(grown, rel=1e-3)
