"""A thousand regularisation strengths at once: one ridge parameter per feature, tuned on validation data.

python examples/many_hyperparameters.py [--steps 5000]
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bilevel as bl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=5000)
steps = parser.parse_args().steps

rng = np.random.default_rng(0)
features, rows = 1000, 600
truth = np.where(np.arange(features) < 20, rng.normal(size=features), 0.0)  # only twenty features matter


def sample(count):
    a = rng.normal(size=(count, features)).astype(np.float32)
    return a, (a @ truth + 0.5 * rng.normal(size=count)).astype(np.float32)


train, valid, test = sample(rows), sample(rows), sample(rows)


def error(y, batch):
    inputs, targets = batch
    return jnp.mean((inputs @ y - targets) ** 2)


def strengths(x):
    """Between 0.001 and 10 whatever x is, so that one inner step size suits all of them."""
    return 10.0 ** (4 * jax.nn.sigmoid(x) - 3)


problem = bl.Problem(
    outer=lambda x, y, batch: error(y, batch),
    inner=lambda x, y, batch: error(y, batch) + jnp.sum(strengths(x) * y**2),
)
solver = bl.aid(problem, inner=0.03, adjoint=0.03, outer=optax.adam(0.01))
x0, y0 = np.full(features, 1.1, np.float32), np.zeros(features, np.float32)
data = bl.Batch(inner=train, outer=valid)
result = bl.run(solver, x0, y0, data=data, steps=steps, warmup=100, progress=True)

ridge = np.asarray(strengths(result.x))
first = bl.warm_up(
    solver, solver.init(x0, y0, data), data, steps=1000
).y  # trained with all strengths equal to 1
print(result.status)
print(
    f"test error with one strength for all {error(first, test):.3f}, with a thousand {error(result.y, test):.3f}"
)
print(
    f"median strength: {np.median(ridge[:20]):.3g} where a feature matters, {np.median(ridge[20:]):.3g} elsewhere"
)
