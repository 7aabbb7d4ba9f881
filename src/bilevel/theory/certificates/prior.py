"""The earlier analysis: direct squared-norm bounds for AID (κ⁶/K) and ITD (κ³/K + κ³), fully explicit.

The rates are those of Ji et al. 2022, who square every recursion at once and split it by Young's inequality with
the parameter that just preserves contraction, ‖u + w‖² ≤ (1 + αμ)‖u‖² + (1 + 1/(αμ))‖w‖². They are stated only up
to constants there; the constants here are our own derivation along that template (documentation, "The earlier
analysis"). Both bounds are valid, which is what makes them comparable with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bilevel.theory.certificates.paper_aid import smallest
from bilevel.theory.certificates.paper_itd import itd as paper_itd, radius_beta
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, fraction, horizon, nonnegative


@dataclass(frozen=True)
class PriorAID:
    """AID with α = 1/L and η = μ²/(4L³): the unweighted potential forces the small η.

    Potential δ_k = λ²‖ŷ_k − y*_k‖² + L²‖v̂_k − v*_k‖², λ = L + ρM/μ, with e_k² ≤ 2δ_k and
    δ_k ≤ (1 − ημ/4)δ_{k−1} + 2Wβ²‖∇Φ(x_{k−1})‖², W = (3/2)λ²κ³ + 8κ³(1 + κ)²κ²λ².
    """

    constants: Constants
    alpha: Floats
    eta: Floats
    beta: Floats
    beta_terms: Mapping[str, Floats]
    binding: str | np.ndarray
    slope: Floats
    W: Floats

    @property
    def A(self) -> Floats:
        """Descent factor A = 1/2 − 32κ³Wβ² ≥ 1/4."""
        return 0.5 - 32 * self.constants.kappa**3 * self.W * self.beta**2

    def b0_bound(self, a0: Real = 0.0) -> Floats:
        """‖v̂₀ − v*₀‖ ≤ (1 − ημ)M/μ + ηλ·a0 when v₀ = 0 and a0 = ‖ŷ₀ − y*₀‖."""
        k, a0 = self.constants, nonnegative(a0, "a0", "it is the initial inner error ‖ŷ₀ − y*(x₀)‖")
        return (1 - self.eta * k.mu) * k.M / k.mu + self.eta * self.slope * a0

    def bound(self, steps: Real, gap: Real, a0: Real = 0.0, b0: Real | None = None) -> Floats:
        """(1/K) Σ_{k<K} ‖∇Φ(x_k)‖² ≤ (gap/β + 16κ³δ₀)/(AK), a0 = ‖ŷ₀ − y*₀‖, b0 = ‖v̂₀ − v*₀‖.

        `b0` defaults to `b0_bound`, which needs v₀ = 0. Note that v* is taken at y*, not at ŷ.
        """
        gap = nonnegative(gap, "gap", "it is Φ(x₀) − inf Φ")
        a0 = nonnegative(a0, "a0", "it is the initial inner error ‖ŷ₀ − y*(x₀)‖")
        b0 = self.b0_bound(a0) if b0 is None else nonnegative(b0, "b0", "it is the error ‖v̂₀ − v*₀‖")
        delta0 = (self.slope * a0) ** 2 + (self.constants.L * b0) ** 2
        return (gap / self.beta + 16 * self.constants.kappa**3 * delta0) / (self.A * horizon(steps))


@dataclass(frozen=True)
class PriorITD:
    """ITD with α = 1/L: Young's parameter αμ on the constant error as well costs a factor 1 + κ.

    e_k² ≤ (1 + αμ)C₄²‖ŷ_k − y*_k‖² + (1 + κ)C₅² with the paper's C₄, C₅ and radius R_y.
    """

    constants: Constants
    alpha: Floats
    beta: Floats
    beta_terms: Mapping[str, Floats]
    binding: str | np.ndarray
    R_y: Floats
    C4: Floats
    C5: Floats

    @property
    def feedback(self) -> Floats:
        """θ = 4β²κ⁴(1 + 1/κ)C₄² ≤ 1/2: the share of Σ‖∇Φ‖² that returns through the error."""
        kappa = self.constants.kappa
        return 4 * (1 + 1 / kappa) * (self.beta * kappa**2 * self.C4) ** 2

    @property
    def inherent_error(self) -> Floats:
        """(1 + θ)/(1 − θ)·(1 + κ)·C₅² = Θ(κ³): the part that no number of steps removes."""
        return (1 + self.feedback) / (1 - self.feedback) * (1 + self.constants.kappa) * self.C5**2

    def bound(self, steps: Real, gap: Real, y_error: Real = 0.0) -> Floats:
        """(1/K) Σ ‖∇Φ(x_k)‖² ≤ [2·gap/β + 2κ(1 + 1/κ)C₄²·y_error²]/((1 − θ)K) + inherent_error."""
        gap = nonnegative(gap, "gap", "it is Φ(x₀) − inf Φ")
        y_error = nonnegative(y_error, "y_error", "it is the initial inner error ‖ŷ₀ − y*(x₀)‖")
        start = 2 * (self.constants.kappa + 1) * (self.C4 * y_error) ** 2
        vanishing = (2 * gap / self.beta + start) / ((1 - self.feedback) * horizon(steps))
        return vanishing + self.inherent_error


def aid(constants: Constants, c: Real = 1.0) -> PriorAID:
    """Direct squared-norm certificate for AID: β = c·min{1/L_Φ, 1/√(128κ³W)} = Θ(κ⁻⁶)."""
    L, kappa = constants.L, constants.kappa
    slope = L + constants.rho * constants.M / constants.mu
    W = (1.5 + 8 * kappa**2 * (1 + kappa) ** 2) * kappa**3 * slope**2
    terms = {"smoothness": 1 / constants.L_Phi, "error feedback": 1 / np.sqrt(128 * kappa**3 * W)}
    beta, binding = smallest(terms)
    eta = 1 / (4 * L * kappa**2)
    return PriorAID(constants, 1 / L, eta, fraction(c, "c") * beta, terms, binding, slope, W)


def itd(constants: Constants, R_y: Real | None = None, c: Real = 1.0) -> PriorITD:
    """Direct squared-norm certificate for ITD: β = c·min{1/L_Φ, 1/(κ²C₄√(8(1 + 1/κ))), αμ²R_y/(LG)}."""
    p, kappa = paper_itd(constants, R_y), constants.kappa
    terms = {
        "radius": radius_beta(constants, p.R_y),
        "smoothness": 1 / constants.L_Phi,
        "error feedback": 1 / (kappa**2 * p.C4 * np.sqrt(8 * (1 + 1 / kappa))),
    }
    beta, binding = smallest(terms)
    return PriorITD(constants, p.alpha, fraction(c, "c") * beta, terms, binding, p.R_y, p.C4, p.C5)
