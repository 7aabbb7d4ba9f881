"""Lower bound for single-loop ITD, with the instance that attains it.

ITD differentiates one inner step. Its estimate has ∇²_xy g·α∇_y f, and the hypergradient has
∇²_xy g·(∇²_yy g)⁻¹∇_y f. If ∇_y f is in the weakest eigendirection, the two always differ by the factor αμ.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, positive


@dataclass(frozen=True)
class QuadraticInstance:
    """f(x, y) = ½xᵀZx + pᵀy and g(x, y) = ½yᵀZy − ℓxᵀy with Z = diag(L, μ), for NumPy and JAX arrays."""

    Z: np.ndarray
    coupling: float
    p: np.ndarray

    def f(self, x: Any, y: Any) -> Any:
        return 0.5 * (x @ (self.Z @ x)) + self.p @ y

    def g(self, x: Any, y: Any) -> Any:
        return 0.5 * (y @ (self.Z @ y)) - self.coupling * (x @ y)

    def y_star(self, x: Any) -> Any:
        """Return y*(x) = ℓZ⁻¹x."""
        return self.coupling * (x / np.diag(self.Z))

    def hypergradient(self, x: Any) -> Any:
        """Return ∇Φ(x) = Zx + ℓZ⁻¹p."""
        return self.Z @ x + self.coupling * (self.p / np.diag(self.Z))

    def itd_limit(self, alpha: float) -> np.ndarray:
        """Return ITD's limit: its estimate Zx + αℓp vanishes at x = −αℓZ⁻¹p."""
        return -alpha * self.coupling * self.p / np.diag(self.Z)


@dataclass(frozen=True)
class StrictInstance:
    """Instance with scalar x and y, on which Assumptions 4.2 to 4.5 hold jointly and on the whole space.

    Φ is bounded below. g(x, y) = (μ/2)(y² − x²) − ℓxy with ℓ² = L² − μ², so that ∇²g has the eigenvalues ±L.
    f(x, y) = h(x) + ψ(y), where h' = Lx clipped to [−s, s]. ψ' = m, bent down to 0 for y below −Y; the
    iterates from x = y = 0 never reach this y. With s = αℓm and s² + m² = M², ITD converges to x = −s/L.
    """

    mu: float
    L: float
    coupling: float
    m: float
    s: float
    Y: float

    def f(self, x: Any, y: Any) -> Any:
        edge, width, depth = self.s / self.L, self.m / self.L, y + self.Y
        u = 0.5 * (abs(x + edge) - abs(x - edge))  # x clipped to [−edge, edge]
        t = 0.5 * (abs(depth + width) - abs(depth) - width)  # depth clipped to [−width, 0]
        return self.L * (u * x - 0.5 * u * u) + self.m * y + self.L * (t * depth - 0.5 * t * t)

    def g(self, x: Any, y: Any) -> Any:
        return 0.5 * self.mu * (y * y - x * x) - self.coupling * x * y

    def y_star(self, x: Any) -> Any:
        """Return y*(x) = ℓx/μ."""
        return self.coupling * x / self.mu

    def itd_limit(self) -> float:
        """Return ITD's limit from x₀ = y₀ = 0."""
        return -self.s / self.L


@dataclass(frozen=True)
class LowerBound:
    """Limit of ‖∇Φ(x_K)‖² of ITD on its worst instance, for any α ≤ 2/(L + μ) and β for which ITD converges.

    * `value` = M²(L/μ)²(1 − αμ)², which is M²(κ − 1)² for α = 1/L. L bounds the derivatives block by block
      and M bounds ∇_y f. `tight.itd` and `star.itd` need no more: upper and lower bound then agree, constant
      included.
    * `strict` = (1 − κ⁻²)·value/(1 + α²(L² − μ²)): an instance on which Assumptions 4.2 to 4.5 hold
      literally, jointly in (x, y) and on the whole space. For α = 1/L it tends to value/2 as κ grows.
    """

    constants: Constants
    alpha: Floats
    value: Floats
    strict: Floats

    def instance(self) -> QuadraticInstance:
        """Return the instance behind `value`: Z = diag(L, μ), ℓ = L, p = M·(0, 1)."""
        mu, L, M, _ = self._scalars()
        return QuadraticInstance(Z=np.diag([L, mu]), coupling=L, p=np.array([0.0, M]))

    def strict_instance(self) -> StrictInstance:
        """Return the instance behind `strict`."""
        mu, L, M, alpha = self._scalars()
        coupling = float(np.sqrt(L**2 - mu**2))
        m = M / float(np.sqrt(1 + (alpha * coupling) ** 2))
        s = alpha * coupling * m
        return StrictInstance(mu=mu, L=L, coupling=coupling, m=m, s=s, Y=2 * s / mu)

    def _scalars(self) -> tuple[float, float, float, float]:
        k = self.constants
        if any(np.ndim(value) > 0 for value in (k.mu, k.L, k.M, self.alpha)):
            raise ValueError(
                "an instance belongs to one set of constants: pass scalars to Constants, not arrays"
            )
        return float(k.mu), float(k.L), float(k.M), float(self.alpha)


def lower_bound(constants: Constants, alpha: Real | None = None) -> LowerBound:
    """Return the worst-case limit of ITD's ‖∇Φ(x_K)‖² with inner step α ≤ 2/(L + μ) (1/L by default)."""
    constants = Constants.of(constants)
    mu, L, M, kappa = constants.mu, constants.L, constants.M, constants.kappa
    alpha = 1 / L if alpha is None else positive(alpha, "alpha")
    if np.any(alpha * (L + mu) > 2 * (1 + 1e-12)):
        share = np.max(alpha * (L + mu) / 2)
        raise ValueError(f"alpha must be at most 2/(L + mu), got {share:g} times that; reduce it")
    value = (M * kappa * (1 - alpha * mu)) ** 2
    strict = (1 - kappa**-2.0) * value / (1 + alpha**2 * (L**2 - mu**2))
    return LowerBound(constants, alpha, value, strict)
