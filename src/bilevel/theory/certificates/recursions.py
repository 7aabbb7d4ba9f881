"""Decoupled versus direct: two ways to bound e_{k+1} = A e_k + δ_k with ‖A‖ ≤ r < 1.

*Decoupled* (norm first, square last): ‖e_{k+1}‖ ≤ r‖e_k‖ + ‖δ_k‖, squared when a square is needed.
*Direct* (square first): ‖e_{k+1}‖² ≤ (1 + θ)r²‖e_k‖² + (1 + 1/θ)‖δ_k‖², Young's inequality at every step.

Persistent perturbations cost the same in both: the best θ gives the direct gain 1/(1 − r)², equal to the
decoupled one. A single perturbation does not: the direct recursion charges 1 + 1/θ ≈ κ for it, the decoupled
one charges 1. Coupled recursions lose two κ through the potential (`largest_adjoint_step`): with the right
weight, squaring first gives κ⁴ as well (`weighted_squares`).
"""

from dataclasses import dataclass

import numpy as np

from bilevel.theory.certificates.certificate import Errors, OneBeta, smallest
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, nonnegative, number, positive, scalar

E0 = "it is the norm of the initial error"


def decoupled(r: float, perturbations: Real, e0: float = 0.0) -> np.ndarray:
    """Return the squared bounds u_k², k = 0..K, with u_{k+1} = r·u_k + ‖δ_k‖ and u_0 = ‖e_0‖."""
    rate, delta = scalar(_contraction(r), "r"), _norms(perturbations)
    u = [scalar(nonnegative(e0, "e0", E0), "e0")]
    for size in delta:
        u.append(rate * u[-1] + size)
    return np.square(u)


def direct(r: float, perturbations: Real, e0: float = 0.0, theta: float | None = None) -> np.ndarray:
    """Return the squared bounds s_k, k = 0..K: s_{k+1} = (1 + θ)r²s_k + (1 + 1/θ)‖δ_k‖² and s_0 = ‖e_0‖².

    θ defaults to `best_theta(r)`. A θ with (1 + θ)r² ≥ 1 is allowed: the bound then grows without limit.
    """
    rate, delta = scalar(_contraction(r), "r"), _norms(perturbations)
    young = best_theta(r) if theta is None else scalar(positive(theta, "theta"), "theta")
    s = [np.square(scalar(nonnegative(e0, "e0", E0), "e0"))]
    for size in delta:
        s.append((1 + young) * rate**2 * s[-1] + (1 + 1 / young) * size**2)
    return np.asarray(s)


def best_theta(r: Real) -> Floats:
    """Return θ = (1 − r)/r, which minimizes the direct gain: (1 + θ)r² = r and 1 + 1/θ = 1/(1 − r)."""
    r = _contraction(r)
    if np.any(np.equal(r, 0)):
        raise ValueError("theta is undefined for r = 0: then e_{k+1} = δ_k and nothing has to be split")
    return (1 - r) / r


def decoupled_gain(r: Real) -> Floats:
    """Return sup Σ‖e_k‖²/Σ‖δ_k‖² by the decoupled bound: 1/(1 − r)²."""
    return 1 / (1 - _contraction(r)) ** 2


def direct_gain(r: Real, theta: Real | None = None) -> Floats:
    """Return sup Σ‖e_k‖²/Σ‖δ_k‖² by the direct bound: (1 + 1/θ)/(1 − (1 + θ)r²), infinite if (1 + θ)r² ≥ 1."""
    r = _contraction(r)
    theta = best_theta(r) if theta is None else positive(theta, "theta")
    rate = np.asarray((1 + theta) * r**2)
    with np.errstate(divide="ignore"):
        return np.where(rate < 1, (1 + 1 / theta) / np.maximum(1 - rate, 0), np.inf)[()]


def impulse_energy(r: Real, theta: Real | None = None) -> tuple[Floats, Floats]:
    """Return Σ_k of both bounds for one unit perturbation: (decoupled, direct) = (1/(1 − r²), direct gain).

    Their ratio, (1 + r)/(1 − r) at the best θ, is the extra factor of about 2κ that squaring first costs here.
    """
    return 1 / (1 - _contraction(r) ** 2), direct_gain(r, theta)


def largest_adjoint_step(constants: Constants, weight: Real = 1.0) -> Floats:
    """Return the largest η ≤ 1/L for which weight·λ²‖ŷ − y*‖² + L²‖v̂ − v*‖² contracts at rate 1 − ημ/2.

    Here α = 1/L. Squaring leaves (2ηλ²/μ)‖ŷ − y*‖² in the adjoint's recursion. The inner contraction has to
    absorb it: (weight + 2ηL²/μ)(1 − 1/κ) ≤ weight·(1 − ημ/2). With weight 1 (the earlier analysis) η =
    Θ(κ⁻²)/L; a weight of order κ² allows η = 1/L. Here, and not in Young's inequality, it loses two κ.
    """
    weight = positive(weight, "weight", "it multiplies the inner error in the potential")
    constants = Constants.of(constants)
    mu, L, kappa = constants.mu, constants.L, constants.kappa
    limit = (weight / kappa) / ((2 * L**2 / mu) * (1 - 1 / kappa) + weight * mu / 2)
    return np.minimum(limit, 1 / L)


@dataclass(frozen=True)
class WeightedSquares(OneBeta):
    """AID with α = η = 1/L with squares only, in the potential δ_k = 4κ²λ²‖ŷ_k − y*_k‖² + L²‖v̂_k − v*_k‖².

    e_k² ≤ 2δ_k and δ_k ≤ (1 − 1/4κ)δ_{k−1} + 2Wβ²‖∇Φ(x_{k−1})‖², W = λ²κ³(6κ² + 6κ + 2) ≤ 14λ²κ⁵, λ = L +
    ρM/μ. The bound is (gap/β + 4κδ₀)/(AK).
    """

    slope: Floats  # λ
    W: Floats

    @property
    def A(self) -> Floats:
        """Return the descent factor A = 1/2 − 8κWβ² ≥ 1/4."""
        return 0.5 - 8 * self.constants.kappa * self.W * self.beta**2

    def _errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        """Return (‖ŷ₀ − y*₀‖, ‖v̂₀ − v*₀‖) after the first update."""
        rate, (y_error, v_error) = 1 - 1 / self.constants.kappa, super()._errors(y_error, v_error)
        a0 = rate * y_error
        return a0, rate * v_error + self.slope / self.constants.L * a0

    def _at_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        k = self.constants
        start = (2 * k.kappa * self.slope * errors[0]) ** 2 + (k.L * errors[1]) ** 2
        return (gap / self.beta + 4 * k.kappa * start) / (self.A * steps)


def weighted_squares(constants: Constants) -> WeightedSquares:
    """Return the earlier analysis with a weight: β = min{1/L_Φ, 1/√(32κW)} = Θ(1/(λκ³)), bound O(κ⁴/K)."""
    constants = Constants.of(constants)
    L, kappa = constants.L, constants.kappa
    slope = L + constants.rho * constants.M / constants.mu
    W = (6 * kappa**2 + 6 * kappa + 2) * kappa**3 * slope**2
    terms = {"smoothness": 1 / constants.L_Phi_blockwise, "error feedback": 1 / np.sqrt(32 * kappa * W)}
    beta = smallest(terms)[0]
    return WeightedSquares("weighted squares", "AID", constants, 1 / L, 1 / L, terms, beta, slope, W)


def _contraction(r: Real) -> Floats:
    r = number(r, "r")
    if np.any(r < 0) or np.any(r >= 1):
        raise ValueError(
            f"r must lie in [0, 1), got {r}: it is the factor by which the error shrinks per step"
        )
    return r


def _norms(perturbations: Real) -> np.ndarray:
    norms = np.atleast_1d(nonnegative(perturbations, "perturbations", "they are the norms ‖δ_k‖"))
    if norms.ndim > 1:
        raise ValueError(
            f"perturbations must be a list of numbers, got shape {norms.shape}: take one row at a time"
        )
    return norms
