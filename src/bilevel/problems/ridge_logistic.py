"""Ridge-regularised logistic regression with one regularisation strength per feature, tuned on validation data.

    g(x, y) = mean_i log(1 + exp(−b_i a_iᵀy)) + ½ Σ_j r(x_j) y_j²      r(x) = low + (high − low) σ(x)
    f(x, y) = mean_i log(1 + exp(−b'_i a'_iᵀy)) + ½ τ ‖x‖²

The strengths stay between `low` and `high` whatever x is, so g is strongly convex in y with constants that
hold everywhere; the small τ keeps the minimiser of Φ finite.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevel.problem import Batch, Problem


class Examples(NamedTuple):
    features: Any  # one row per example
    labels: Any  # −1 or +1


@dataclass(frozen=True, eq=False)
class RidgeLogistic:
    """The problem on given training and validation examples."""

    train: Examples
    valid: Examples
    low: float = 0.1
    high: float = 1.1
    tau: float = 0.05

    @cached_property
    def problem(self) -> Problem:
        return Problem(outer=self.f, inner=self.g)

    @property
    def data(self) -> Batch:
        return Batch(inner=self.train, outer=self.valid)

    def strengths(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.low + (self.high - self.low) * jax.nn.sigmoid(x)

    def g(self, x: Float[Array, " d"], y: Float[Array, " d"], batch: Examples) -> Float[Array, ""]:
        return _logistic(y, batch) + 0.5 * jnp.sum(self.strengths(x) * y * y)

    def f(self, x: Float[Array, " d"], y: Float[Array, " d"], batch: Examples) -> Float[Array, ""]:
        return _logistic(y, batch) + 0.5 * self.tau * jnp.sum(x * x)

    @property
    def mu(self) -> float:
        """Strong convexity of g in y, for every x."""
        return self.low

    @property
    def L(self) -> float:
        """Smoothness of g in y, for every x: ‖AᵀA‖/(4n) + high."""
        features = np.asarray(self.train.features)
        return float(np.linalg.norm(features, 2) ** 2 / (4 * len(features)) + self.high)


def ridge_logistic(
    features: int = 5, train: int = 60, valid: int = 60, seed: int = 0, dtype: Any = float, **strengths: float
) -> RidgeLogistic:
    """A random instance: Gaussian features, a sparse true direction, a tenth of the labels flipped."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=features) * (np.arange(features) % 2 == 0)

    def examples(count: int) -> Examples:
        a = rng.normal(size=(count, features))
        b = np.sign(a @ truth) * np.where(rng.random(count) < 0.1, -1.0, 1.0)
        return Examples(jnp.asarray(a, dtype), jnp.asarray(b, dtype))

    return RidgeLogistic(examples(train), examples(valid), **strengths)


def _logistic(y: Float[Array, " d"], batch: Examples) -> Float[Array, ""]:
    return jnp.mean(jax.nn.softplus(-batch.labels * (batch.features @ y)))
