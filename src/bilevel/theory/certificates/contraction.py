"""Lemma B.2 for two coupled error sequences: radii R_a, R_b that the recursion never leaves.

    a_k ≤ (1 − αμ)a_{k−1} + (αρ/2)a_{k−1}² + (Lβρ/μ)b_{k−1} + Lβc'/μ
    b_k ≤ (1 − ημ + c₀βρ)b_{k−1} + αc₀L·a_k + c₀βc'

with c₀ = ρM/μ² + L/μ and c' = M + ρM/μ. If a_0 ≤ R_a = μ/(2ρ), b_0 ≤ R_b = 2αc₀L/(ηρ) and β is at most
`beta_max`, then a_k ≤ R_a and b_k ≤ R_b for all k.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bilevel.theory.certificates.certificate import inverse, smallest
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, listed_steps, nonnegative, scalar, short_step


@dataclass(frozen=True)
class TwoSequenceContraction:
    """Lemma B.2 for given α ≤ 1/L and η ≤ 1/L. With ρ = 0, radii and β are infinite."""

    constants: Constants
    alpha: Floats
    eta: Floats
    c0: Floats
    c_prime: Floats
    R_a: Floats
    R_b: Floats
    beta_max: Floats
    beta_terms: Mapping[str, Floats]
    binding: str | np.ndarray

    def worst_case(self, beta: float, a0: float, b0: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return both recursions with equality, (a_0..a_K, b_0..b_K); outside the radii they may diverge."""
        k = self.constants
        step = scalar(nonnegative(beta, "beta"), "beta")
        a, b = (np.empty(listed_steps(steps) + 1) for _ in range(2))
        a[0] = scalar(nonnegative(a0, "a0", "it is an error norm"), "a0")
        b[0] = scalar(nonnegative(b0, "b0", "it is an error norm"), "b0")
        shrink = 1 - self.eta * k.mu + self.c0 * step * k.rho
        with np.errstate(over="ignore"):
            for i in range(1, len(a)):
                a[i] = (1 - self.alpha * k.mu) * a[i - 1] + self.alpha * k.rho / 2 * a[i - 1] ** 2
                a[i] += k.kappa * step * (k.rho * b[i - 1] + self.c_prime)
                b[i] = shrink * b[i - 1] + self.alpha * self.c0 * k.L * a[i] + self.c0 * step * self.c_prime
        return a, b


def two_sequence_contraction(
    constants: Constants, alpha: Real | None = None, eta: Real | None = None
) -> TwoSequenceContraction:
    """Return the radii and the largest β of the lemma; α and η default to 1/L.

    β ≤ min{αμ³/(8ρLc'), μ³η/(16ρL²c₀), ημ/(2c₀ρ), αμL/(2ρc')}. The last two never bind (they exceed the
    second and the first by 8κ² and 4κ²). The lemma as printed omits η ≤ 1/L, which its second step needs.
    """
    constants = Constants.of(constants)
    mu, L, M, rho = constants.mu, constants.L, constants.M, constants.rho
    alpha, eta = short_step(alpha, "alpha", L), short_step(eta, "eta", L)
    c0 = rho * M / mu**2 + L / mu
    c_prime = M + rho * M / mu
    inverse_rho, inverse_c_prime = inverse(rho), inverse(c_prime)
    terms = {
        "inner drift": alpha * mu**3 / (8 * L) * inverse_rho * inverse_c_prime,
        "adjoint to inner": mu**3 * eta / (16 * L**2 * c0) * inverse_rho,
        "adjoint contraction": eta * mu / (2 * c0) * inverse_rho,
        "adjoint drift": alpha * mu * L / 2 * inverse_rho * inverse_c_prime,
    }
    beta_max, binding = smallest(terms)
    R_a, R_b = mu / 2 * inverse_rho, 2 * alpha * c0 * L / eta * inverse_rho
    return TwoSequenceContraction(constants, alpha, eta, c0, c_prime, R_a, R_b, beta_max, terms, binding)
