"""Theorem 5.9: single-loop AID, (1/K) Σ ‖∇Φ(x_k)‖² = O(κ⁵/K), with every constant explicit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilevel.theory.certificates.certificate import Errors, OneBeta, smallest
from bilevel.theory.certificates.warmup import steps_to_reach
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, fraction, nonnegative, positive


class Complexity(NamedTuple):
    """Oracle calls that reach an ε-stationary point; Gc includes the warm-up gradients."""

    iterations: int | np.ndarray
    warmup: int | np.ndarray
    Gc: int | np.ndarray
    Mv: int | np.ndarray


@dataclass(frozen=True)
class AIDCertificate(OneBeta):
    """Step sizes, constants and bounds of Theorem 5.9 (paper's symbols, α = η = 1/L).

    Potential E_k = ‖v̂_k − ṽ*_k‖ + C₁‖ŷ_k − y*_k‖, which obeys E_k ≤ (1 − μ/2L) E_{k−1} + βC₂‖∇Φ(x_{k−1})‖
    and dominates the hypergradient error, ‖∇̂Φ(x_k) − ∇Φ(x_k)‖ ≤ L·E_k.
    """

    C0: Floats
    C1: Floats
    C2: Floats
    C3: Floats

    @property
    def A(self) -> Floats:
        """Descent factor A = 1/2 − βL_Φ − (1/2 + βL_Φ)·12β²C₂²L⁴/μ² ≥ 33/128."""
        k = self.constants
        descent = self.beta * k.L_Phi
        return 0.5 - descent - (0.5 + descent) * 12 * (self.beta * self.C2 * k.L**2 / k.mu) ** 2

    def E0_bound(self, c_y: Real = 1.0) -> Floats:
        """E₀ ≤ M/L + M/μ + C₁c_yμ for v₀ = 0 and ‖y₀ − y*₀‖ ≤ c_yμ (Lemma 5.8)."""
        k, c_y = self.constants, _radius(c_y)
        return k.M / k.L + k.M / k.mu + self.C1 * c_y * k.mu

    def warmup_steps(self, D_y: Real, c_y: Real = 1.0) -> int | np.ndarray:
        """Gradient steps on g(x₀, ·) that bring ‖y₀ − y*₀‖ from D_y down to c_yμ."""
        return steps_to_reach(self.constants, D_y, _radius(c_y) * self.constants.mu)

    def errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        """(‖ŷ₀ − y*₀‖, ‖v̂₀ − ṽ*₀‖)."""
        return start_of_aid(self.constants, self.C0, y_error, v_error)

    def at_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        """gap/(βAK) + 2L³(1 + 2βL_Φ)E₀²/(μAK) with E₀ = ‖v̂₀ − ṽ*₀‖ + C₁‖ŷ₀ − y*₀‖."""
        return self._scaled_bound(gap, errors[1] + self.C1 * errors[0]) / steps

    def complexity(self, eps: Real, gap: Real, D_y: Real = 0.0, c_y: Real = 1.0) -> Complexity:
        """Iterations K with bound(K) ≤ ε from v₀ = 0 and a raw inner point at distance D_y, and their cost.

        An iteration computes three gradients (∇_y g, ∇_x f, ∇_y f) and two products (Hessian, cross).
        """
        eps = positive(eps, "eps", "it is the target for the mean of ‖∇Φ‖²")
        K = _whole(np.maximum(np.ceil(self._scaled_bound(gap, self.E0_bound(c_y)) / eps), 1))
        warmup = self.warmup_steps(D_y, c_y)
        return Complexity(iterations=K, warmup=warmup, Gc=3 * K + warmup, Mv=2 * K)

    def _scaled_bound(self, gap: Real, E0: Real) -> Floats:
        """K times the bound: it does not depend on K."""
        k = self.constants
        gap = nonnegative(gap, "gap", "it is Φ(x₀) − inf Φ")
        start = 2 * k.L**3 * (1 + 2 * self.beta * k.L_Phi) / k.mu * E0**2
        return (gap / self.beta + start) / self.A


def aid(constants: Constants, c: Real = 1.0) -> AIDCertificate:
    """Theorem 5.9's certificate.

    β = c·min{1/(8L_Φ), C₁μα/(4C₂C₃), ημ/(2LC₂), μ/(8C₂L²)} with α = η = 1/L, C₀ = ρM/μ² + L/μ,
    C₁ = 4C₀L/μ, C₂ = αL²C₀/μ + ρM/μ² + L/μ + LC₁/μ, C₃ = L + ρM/μ + C₀L, and c in (0, 1].
    """
    constants = Constants.of(constants)
    mu, L, M, rho = constants.mu, constants.L, constants.M, constants.rho
    alpha = eta = 1 / L
    C0 = rho * M / mu**2 + L / mu
    C1 = 4 * C0 * L / mu
    C2 = alpha * L**2 * C0 / mu + rho * M / mu**2 + L / mu + L * C1 / mu
    C3 = L + rho * M / mu + C0 * L
    terms = {
        "smoothness": 1 / (8 * constants.L_Phi),
        "inner contraction": C1 * mu * alpha / (4 * C2 * C3),
        "adjoint contraction": eta * mu / (2 * L * C2),
        "error feedback": mu / (8 * C2 * L**2),
    }
    beta = fraction(c, "c") * smallest(terms)[0]
    return AIDCertificate("paper", "AID", constants, alpha, eta, terms, beta, C0, C1, C2, C3)


def start_of_aid(constants: Constants, C0: Floats, y_error: Floats, v_error: Floats | None) -> Errors:
    """(‖ŷ₀ − y*₀‖, ‖v̂₀ − ṽ*₀‖) after the first update with α = η = 1/L: ‖ṽ*‖ ≤ M/μ, and ‖ṽ* − v*‖ ≤ C₀‖ŷ₀ − y*₀‖."""
    inner = 1 - 1 / constants.kappa
    a0 = inner * y_error
    return a0, inner * (constants.M / constants.mu if v_error is None else v_error + C0 * a0)


def _whole(count: Floats) -> int | np.ndarray:
    """Scalars become Python integers, which cannot overflow; arrays beyond 64 bits have to stay floats."""
    if not np.all(np.isfinite(count)):
        raise ValueError(
            "the number of iterations is beyond what float64 holds: pass a larger eps, or a smaller gap, D_y or c_y"
        )
    if np.ndim(count) == 0:
        return int(count)
    return np.asarray(count) if np.any(count >= 2.0**61) else np.asarray(count).astype(np.int64)


def _radius(c_y: Real) -> Floats:
    return positive(c_y, "c_y", "the warm-up brings ‖y₀ − y*₀‖ down to c_y·mu")
