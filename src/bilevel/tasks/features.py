"""Feature learning: a linear feature layer x judged on validation data, a ridge head y fitted to training data.

    g(x, y) = (1/2n) ‖A x y − b‖² + (μ/2) ‖y‖²        f(x, y) = (1/2n') ‖A' x y − b'‖²

A is n × d, x is d × h, y has h entries and h > d. The head's Hessian is xᵀSx + μI with S = AᵀA/n: its smallest
eigenvalue is the ridge μ, always, because xᵀSx has rank at most d < h; its largest is μ + λ_max(xᵀSx). Without the
ridge every x of full rank would give the same predictor, and Φ would not depend on x at all.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevel.problem import Batch, Problem


class Regression(NamedTuple):
    inputs: Any  # one row per example
    targets: Any


@dataclass(frozen=True, eq=False)
class FeatureLearning:
    """The problem with ridge μ (which may be traced), and its closed forms."""

    mu: Any

    @cached_property
    def problem(self) -> Problem:
        return Problem(outer=self.f, inner=self.g)

    def f(self, x: Float[Array, "d h"], y: Float[Array, " h"], batch: Regression) -> Float[Array, ""]:
        return 0.5 * jnp.mean((batch.inputs @ (x @ y) - batch.targets) ** 2)

    def g(self, x: Float[Array, "d h"], y: Float[Array, " h"], batch: Regression) -> Float[Array, ""]:
        return self.f(x, y, batch) + 0.5 * self.mu * jnp.sum(y * y)

    def head(self, x: Float[Array, "d h"], train: Regression) -> Float[Array, " h"]:
        """y*(x) = (xᵀSx + μI)⁻¹xᵀs = xᵀPs with s = Aᵀb/n and P = (S xxᵀ + μI)⁻¹: d × d instead of h × h."""
        S, s = _moments(train)
        return x.T @ (self._inverse(x, S) @ s)

    def value(self, x: Float[Array, "d h"], data: Batch) -> Float[Array, ""]:
        """Φ(x) = f(x, y*(x))."""
        return self.f(x, self.head(x, data.inner), data.outer)

    def hypergradient(self, x: Float[Array, "d h"], data: Batch) -> Float[Array, "d h"]:
        """∇Φ(x) = (q − Sxv)yᵀ − (Sxy − s)vᵀ with y = xᵀPs, v = xᵀPq and q = S'xy − s' on the validation data."""
        (S, s), (S_valid, s_valid) = _moments(data.inner), _moments(data.outer)
        P = self._inverse(x, S)
        y = x.T @ (P @ s)
        q = S_valid @ (x @ y) - s_valid
        v = x.T @ (P @ q)
        return jnp.outer(q - S @ (x @ v), y) - jnp.outer(S @ (x @ y) - s, v)

    def _inverse(self, x: jax.Array, S: jax.Array) -> jax.Array:
        return jnp.linalg.inv(S @ (x @ x.T) + self.mu * jnp.eye(len(S)))

    def curvatures(self, x: Float[Array, "d h"], train: Regression) -> Float[Array, " d"]:
        """The d eigenvalues of the head's Hessian that belong to features, ascending; all others are μ."""
        S, _ = _moments(train)
        root = jnp.linalg.cholesky(S)
        return self.mu + jnp.linalg.eigvalsh(root.T @ (x @ x.T) @ root)


def compress(examples: Regression) -> Regression:
    """d rows with the same gradients as all n: A = QR turns ‖Az − b‖² into ‖Rz − Qᵀb‖² + constant."""
    inputs, targets = np.asarray(examples.inputs), np.asarray(examples.targets)
    Q, R = np.linalg.qr(inputs)
    weight = np.sqrt(len(R) / len(inputs))  # a mean over d rows in place of one over n
    return Regression(weight * R, weight * (Q.T @ targets))


def _moments(train: Regression) -> tuple[jax.Array, jax.Array]:
    A, b = jnp.asarray(train.inputs), jnp.asarray(train.targets)
    return A.T @ A / len(b), A.T @ b / len(b)
