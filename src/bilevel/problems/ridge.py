"""Ridge-regularized logistic regression with one strength per feature, tuned on validation data.

    g(x, y) = mean_i log(1 + exp(−b_i a_iᵀy)) + ½ Σ_j r(x_j) y_j²      r(x) = low + (high − low) σ(x)
    f(x, y) = mean_i log(1 + exp(−b'_i a'_iᵀy)) + ½ τ ‖x‖²

The strengths stay between `low` and `high` for every x. So g is strongly convex in y with constants that hold
everywhere. The small τ keeps the minimizer of Φ finite.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from bilevel.batch import Batch
from bilevel.checks import (
    check_array,
    check_count,
    check_dtype,
    check_generator,
    check_not_negative,
    check_positive,
)
from bilevel.data.examples import Examples
from bilevel.problem import Problem
from bilevel.problems.instance import STATIONARITY, Instance, checked, stationarity
from bilevel.theory.constants import Constants


@dataclass(frozen=True, eq=False)
class RidgeLogistic:
    """Ridge-regularized problem on given training and validation examples, with targets −1 and +1."""

    train: Examples
    valid: Examples
    low: float = 0.1
    high: float = 1.1
    tau: float = 0.05

    def __post_init__(self) -> None:
        for name, examples in checked(self.train, self.valid):
            check_array(examples.targets, f"{name}.targets", 1)
            signs = examples.targets
            if not isinstance(signs, Tracer) and not np.all(np.abs(np.asarray(signs)) == 1):
                raise ValueError(
                    f"{name}.targets must be −1 and +1: of labels 0 and 1, make them by 2.0 * labels - 1"
                )
        check_positive(self.low, "smallest strength low", traced=False)
        check_positive(self.high, "largest strength high", traced=False)
        check_not_negative(self.tau, "weight tau", traced=False)
        if self.low > self.high:
            raise ValueError(f"low = {self.low} exceeds high = {self.high}: exchange them")

    @cached_property
    def problem(self) -> Problem:
        return Problem(outer=self.f, inner=self.g)

    @property
    def data(self) -> Batch:
        return Batch(inner=self.train, outer=self.valid)

    def instance(self, x0: Any = None, y0: Any = None) -> Instance:
        """Return the instance that starts from `x0` and `y0`, zeros if left out."""
        blank = jnp.zeros(self.train.inputs.shape[1], self.train.inputs.dtype)
        x0, y0 = (blank if start is None else start for start in (x0, y0))
        measure = stationarity(self.problem, blank, self.data)
        return Instance("ridge_logistic", self.problem, x0, y0, self.data, self.L, measure, STATIONARITY)

    def strengths(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.low + (self.high - self.low) * jax.nn.sigmoid(x)

    def g(self, x: Float[Array, " d"], y: Float[Array, " d"], batch: Examples) -> Float[Array, ""]:
        return _logistic(y, batch) + 0.5 * jnp.sum(self.strengths(x) * y * y)

    def f(self, x: Float[Array, " d"], y: Float[Array, " d"], batch: Examples) -> Float[Array, ""]:
        return _logistic(y, batch) + 0.5 * self.tau * jnp.sum(x * x)

    @property
    def mu(self) -> float:
        """Return the strong convexity constant of g in y, for every x."""
        return self.low

    @property
    def L(self) -> float:
        """Return the smoothness of g in y, for every x: ‖AᵀA‖/(4n) + high."""
        return _strength(self.train) ** 2 / 4 + self.high

    @property
    def inner_radius(self) -> float:
        """Return R = ‖A‖/(√n·low): y*(x) is in the ball ‖y‖ ≤ R, and steps on y of at most 1/L never leave it.

        The loss's gradient has norm at most ‖A‖/√n, so ‖(1 − αr)∘y − α∇loss‖ ≤ (1 − α·low)‖y‖ + α‖A‖/√n.
        """
        return _strength(self.train) / self.low

    def constants(self, x_radius: float = 0.0, y_radius: float | None = None) -> Constants:
        """Return μ, L, M and ρ that hold jointly in (x, y) for ‖x‖ ≤ `x_radius` and ‖y‖ ≤ `y_radius`.

        Only M depends on `x_radius`, through ∇_x f = τx. With 0, M is the bound on ∇_y f that AID needs.
        `y_radius` is `inner_radius` by default. With s = ‖A‖/√n, width = high − low, |σ'| ≤ 1/4 and |σ''| ≤ 1/(6√3):

            ‖∇²_yy g‖ ≤ s²/4 + high                   ‖∇²_xy g‖ ≤ (width/4)·y_radius
            slope of ∇²_yy g: in y (max_i‖a_i‖)s²/(6√3), in x width/4
            slope of ∇²_xy g: in y width/4, in x (width/(6√3))·y_radius
        """
        check_not_negative(x_radius, "x_radius", traced=False)
        if y_radius is not None:
            check_not_negative(y_radius, "y_radius", traced=False)
        radius = self.inner_radius if y_radius is None else y_radius
        width, bend = self.high - self.low, 1 / (6 * np.sqrt(3))
        largest = float(np.linalg.norm(np.asarray(self.train.inputs), axis=1).max())
        cubic = largest * _strength(self.train) ** 2 * bend
        return Constants(
            mu=self.mu,
            L=max(np.hypot(self.L, width / 4 * radius), _strength(self.valid) ** 2 / 4, self.tau),
            M=float(np.hypot(_strength(self.valid), self.tau * x_radius)),
            rho=float(np.hypot(width / 4, max(cubic, width * bend * radius))),
        )


def ridge_logistic(
    features: int = 5, train: int = 60, valid: int = 60, seed: int = 0, dtype: Any = float, **strengths: float
) -> RidgeLogistic:
    """Return a random instance: Gaussian features, a sparse true direction, a tenth of the labels flipped."""
    for name, size in (("features", features), ("train", train), ("valid", valid)):
        check_count(size, name)
    check_dtype(dtype)
    rng = check_generator(seed)
    truth = rng.normal(size=features) * (np.arange(features) % 2 == 0)

    def examples(count: int) -> Examples:
        a = rng.normal(size=(count, features))
        b = np.sign(a @ truth) * np.where(rng.random(count) < 0.1, -1.0, 1.0)
        return Examples(jnp.asarray(a, dtype), jnp.asarray(b, dtype))

    return RidgeLogistic(examples(train), examples(valid), **strengths)


def _strength(examples: Examples) -> float:
    """Return ‖A‖/√n, a bound on the loss's gradient; its square bounds 4 times the curvature."""
    inputs = np.asarray(examples.inputs, np.float64)
    return float(np.linalg.norm(inputs, 2) / np.sqrt(len(inputs)))


def _logistic(y: Float[Array, " d"], batch: Examples) -> Float[Array, ""]:
    return jnp.mean(jax.nn.softplus(-batch.targets * (batch.inputs @ y)))
