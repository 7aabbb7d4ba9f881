"""Earlier analysis: direct squared-norm bounds for AID (κ⁶/K) and ITD (κ³/K + κ³), fully explicit.

Ji et al. 2022 square every recursion at once and split it by Young's inequality with the parameter that just
preserves contraction, ‖u + w‖² ≤ (1 + αμ)‖u‖² + (1 + 1/(αμ))‖w‖². They state the rates only up to constants;
the constants here are our own derivation along that template (documentation, "The earlier analysis").
"""

from dataclasses import dataclass

import numpy as np

from bilevel.theory.certificates import paper
from bilevel.theory.certificates.certificate import Errors, OneBeta, smallest
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, fraction


@dataclass(frozen=True)
class PriorAID(OneBeta):
    """AID with α = 1/L and η = μ²/(4L³): the unweighted potential forces the small η.

    Potential δ_k = λ²‖ŷ_k − y*_k‖² + L²‖v̂_k − v*_k‖², λ = L + ρM/μ, with e_k² ≤ 2δ_k and
    δ_k ≤ (1 − ημ/4)δ_{k−1} + 2Wβ²‖∇Φ(x_{k−1})‖², W = (3/2)λ²κ³ + 8κ³(1 + κ)²κ²λ². The bound is
    (gap/β + 16κ³δ₀)/(AK). Note that v* is taken at y*, not at ŷ.
    """

    slope: Floats
    W: Floats

    @property
    def A(self) -> Floats:
        """Return the descent factor A = 1/2 − 32κ³Wβ² ≥ 1/4."""
        return 0.5 - 32 * self.constants.kappa**3 * self.W * self.beta**2

    def _errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        """Return the errors; the first update of v contracts by 1 − ημ and adds ηλ‖ŷ₀ − y*₀‖."""
        k, (y_error, v_error) = self.constants, super()._errors(y_error, v_error)
        a0 = (1 - 1 / k.kappa) * y_error
        return a0, (1 - self.eta * k.mu) * v_error + self.eta * self.slope * a0

    def _at_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        a0, b0 = errors
        start = 16 * self.constants.kappa**3 * ((self.slope * a0) ** 2 + (self.constants.L * b0) ** 2)
        return (gap / self.beta + start) / (self.A * steps)


@dataclass(frozen=True)
class PriorITD(OneBeta):
    """ITD with α = 1/L; Young's parameter αμ also acts on the constant error, at the cost of a factor 1 + κ.

    e_k² ≤ (1 + αμ)C₄²‖ŷ_k − y*_k‖² + (1 + κ)C₅² with the paper's C₄, C₅ and radius R_y. The bound is
    [2·gap/β + 2(κ + 1)C₄²‖ŷ₀ − y*₀‖²]/((1 − θ)K) + inherent_error.
    """

    R_y: Floats
    C4: Floats
    C5: Floats

    @property
    def feedback(self) -> Floats:
        """Return θ = 4β²κ⁴(1 + 1/κ)C₄² ≤ 1/2: the share of Σ‖∇Φ‖² that returns through the error."""
        kappa = self.constants.kappa
        return 4 * (1 + 1 / kappa) * (self.beta * kappa**2 * self.C4) ** 2

    @property
    def inherent_error(self) -> Floats:
        """Return (1 + θ)/(1 − θ)·(1 + κ)·C₅² = Θ(κ³): the limit of the bound as K → ∞."""
        return (1 + self.feedback) / (1 - self.feedback) * (1 + self.constants.kappa) * self.C5**2

    def _errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        return paper.start_of_itd(self.constants, self.R_y, y_error)

    def _at_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        start = 2 * (self.constants.kappa + 1) * (self.C4 * errors[0]) ** 2
        return (2 * gap / self.beta + start) / ((1 - self.feedback) * steps) + self.inherent_error


def aid(constants: Constants, c: Real = 1.0) -> PriorAID:
    """Return the direct squared-norm certificate for AID: β = c·min{1/L_Φ, 1/√(128κ³W)} = Θ(κ⁻⁶)."""
    constants = Constants.of(constants)
    L, kappa = constants.L, constants.kappa
    slope = L + constants.rho * constants.M / constants.mu
    W = (1.5 + 8 * kappa**2 * (1 + kappa) ** 2) * kappa**3 * slope**2
    terms = {"smoothness": 1 / constants.L_Phi_blockwise, "error feedback": 1 / np.sqrt(128 * kappa**3 * W)}
    beta, eta = fraction(c, "c") * smallest(terms)[0], 1 / (4 * L * kappa**2)
    return PriorAID("earlier", "AID", constants, 1 / L, eta, terms, beta, slope, W)


def itd(constants: Constants, R_y: Real | None = None, c: Real = 1.0) -> PriorITD:
    """Return the squared-norm certificate for ITD: β = c·min{1/L_Φ, 1/(κ²C₄√(8(1 + 1/κ))), αμ²R_y/(LG)}."""
    p, kappa = paper.itd(constants, R_y), constants.kappa
    terms = {
        "radius": paper.radius_beta(constants, p.R_y),
        "smoothness": 1 / constants.L_Phi_blockwise,
        "error feedback": 1 / (kappa**2 * p.C4 * np.sqrt(8 * (1 + 1 / kappa))),
    }
    beta = fraction(c, "c") * smallest(terms)[0]
    return PriorITD("earlier", "ITD", constants, p.alpha, None, terms, beta, p.R_y, p.C4, p.C5)
