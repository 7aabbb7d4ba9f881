"""Two-dimensional problem of the paper, in closed form.

    f(x, y) = ½ xᵀZx + m·1ᵀy        g(x, y) = ½ yᵀZy − L xᵀy + 1ᵀy        Z = diag(L, μ)

The paper prints ∇Φ(x) = Zx + L Z⁻¹1; with the coefficient m of f it is Zx + m L Z⁻¹1.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from bilevel.batch import Batch
from bilevel.checks import as_number, check_finite, check_positive
from bilevel.problem import Problem
from bilevel.problems.instance import STATIONARITY, Instance
from bilevel.theory.reals import LARGEST_KAPPA
from bilevel.words import shown

Vector = Float[Array, "2"]


@partial(jax.tree_util.register_dataclass, data_fields=["mu", "L", "m"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class Quadratic:
    """Problem for given μ, L and m, and its closed forms. The fields may be traced, for `vmap` over them."""

    mu: Any = 0.1
    L: Any = 0.2
    m: Any = 0.1

    @cached_property
    def problem(self) -> Problem:
        return Problem(outer=self.f, inner=self.g)

    def instance(self, x0: Any = None, y0: Any = None) -> Instance:
        """Return the instance that starts from `x0` (default: ones) and `y0` (default: zeros)."""
        x0 = jnp.ones(2) if x0 is None else x0
        y0 = jnp.zeros(2) if y0 is None else y0
        measure = lambda x: jnp.linalg.norm(self.hypergradient(x))
        return Instance("quadratic", self.problem, x0, y0, None, float(self.L), measure, STATIONARITY)

    @property
    def z(self) -> Vector:
        """Return the diagonal of Z."""
        return jnp.stack([jnp.asarray(self.L, dtype=float), jnp.asarray(self.mu, dtype=float)])

    def f(self, x: Vector, y: Vector) -> Float[Array, ""]:
        z = self.z.astype(x.dtype)
        return 0.5 * jnp.sum(z * x * x) + self.m * jnp.sum(y)

    def g(self, x: Vector, y: Vector) -> Float[Array, ""]:
        z = self.z.astype(y.dtype)
        return 0.5 * jnp.sum(z * y * y) - self.L * jnp.sum(x * y) + jnp.sum(y)

    def inner_solution(self, x: Vector) -> Vector:
        """Return y*(x) = Z⁻¹(Lx − 1)."""
        return (self.L * x - 1.0) / self.z

    def adjoint_solution(self, x: Vector) -> Vector:
        """Return v*(x) = m Z⁻¹1, which does not depend on x."""
        return self.m / self.z

    def hypergradient(self, x: Vector) -> Vector:
        """Return ∇Φ(x) = Zx + m L Z⁻¹1."""
        return self.z * x + self.L * self.m / self.z

    def value(self, x: Vector) -> Float[Array, ""]:
        """Return Φ(x) = f(x, y*(x))."""
        return self.f(x, self.inner_solution(x))

    @property
    def solution(self) -> Vector:
        """Return the minimizer x° = −m L Z⁻²1 of Φ, the limit of single-loop AID."""
        return -self.L * self.m / self.z**2

    def itd_limit(self, alpha: Any) -> Vector:
        """Return −α m L Z⁻¹1, the limit of single-loop ITD with inner step α and estimator Zx + α m L·1."""
        check_positive(alpha, "step size alpha")
        return -alpha * self.L * self.m / self.z


# The same problem with its constants as data, `Batch(inner=q, outer=q)`: one program for all of them.
FAMILY = Problem(outer=lambda x, y, q: q.f(x, y), inner=lambda x, y, q: q.g(x, y))


def as_data(q: Quadratic) -> Batch:
    """Return the data with which `FAMILY` is this problem."""
    return Batch(inner=q, outer=q)


def quadratic(mu: Any = 0.1, kappa: Any = 2.0, m: Any = 0.1) -> Quadratic:
    """Return the paper's problem at condition number κ = L/μ."""
    check_positive(mu, "mu")
    check_kappa(kappa)
    if not isinstance(m, Tracer):
        check_finite(m, "m")
    return Quadratic(mu=mu, L=kappa * mu, m=m)


def check_kappa(kappa: Any, traced: bool = True) -> None:
    """Raise if κ is not a condition number, at least 1. A traced κ has no value yet and is not checked."""
    check_positive(kappa, "condition number kappa", traced=traced)
    number = as_number(kappa)
    if number is not None and number > LARGEST_KAPPA:
        raise ValueError(
            f"kappa must be at most {LARGEST_KAPPA:g}, not {shown(kappa)}: no float64 tells 1 − 1/κ from one then"
        )
    if number is not None and number < 1:
        raise ValueError(
            f"kappa must be at least 1, not {shown(kappa)}: it is L/μ, and L ≥ μ always; pass e.g. 10.0"
        )
