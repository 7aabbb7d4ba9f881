"""Decoupled versus direct: two ways to bound e_{k+1} = A e_k + δ_k with ‖A‖ ≤ r < 1.

*Decoupled* (norm first, square last): ‖e_{k+1}‖ ≤ r‖e_k‖ + ‖δ_k‖, squared when a square is needed.
*Direct* (square first): ‖e_{k+1}‖² ≤ (1 + θ)r²‖e_k‖² + (1 + 1/θ)‖δ_k‖², Young's inequality at every step.

Summed over all steps, persistent perturbations cost the same: the best θ gives the direct gain 1/(1 − r)², equal to
the decoupled one. A perturbation that comes and goes does not: the direct recursion charges 1 + 1/θ ≈ κ for it at
once, the decoupled one charges 1. The κ lost in coupled recursions comes from the potential (`largest_adjoint_step`).
"""

from __future__ import annotations

import numpy as np

from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, nonnegative, number, positive


def decoupled(r: float, perturbations: Real, e0: float = 0.0) -> np.ndarray:
    """Squared bounds u_k², k = 0..K, with u_{k+1} = r·u_k + ‖δ_k‖ and u_0 = ‖e_0‖."""
    rate, delta = _contraction(r), _norms(perturbations)
    u = np.empty(len(delta) + 1)
    u[0] = nonnegative(e0, "e0", "it is the norm of the initial error")
    for k, size in enumerate(delta):
        u[k + 1] = rate * u[k] + size
    return u**2


def direct(r: float, perturbations: Real, e0: float = 0.0, theta: float | None = None) -> np.ndarray:
    """Squared bounds s_k, k = 0..K, with s_{k+1} = (1 + θ)r²s_k + (1 + 1/θ)‖δ_k‖² and s_0 = ‖e_0‖².

    θ defaults to `best_theta(r)`. A θ with (1 + θ)r² ≥ 1 is allowed: the bound then blows up, as it would on paper.
    """
    rate, delta = _contraction(r), _norms(perturbations)
    young = best_theta(r) if theta is None else _theta(theta)
    s = np.empty(len(delta) + 1)
    s[0] = nonnegative(e0, "e0", "it is the norm of the initial error") ** 2
    for k, size in enumerate(delta):
        s[k + 1] = (1 + young) * rate**2 * s[k] + (1 + 1 / young) * size**2
    return s


def best_theta(r: Real) -> Floats:
    """θ = (1 − r)/r minimises the direct gain; it turns (1 + θ)r² into r and 1 + 1/θ into 1/(1 − r)."""
    r = _contraction(r)
    if np.any(np.equal(r, 0)):
        raise ValueError("theta is undefined for r = 0: then e_{k+1} = δ_k and nothing has to be split")
    return (1 - r) / r


def decoupled_gain(r: Real) -> Floats:
    """sup Σ‖e_k‖²/Σ‖δ_k‖² by the decoupled bound: 1/(1 − r)²."""
    return 1 / (1 - _contraction(r)) ** 2


def direct_gain(r: Real, theta: Real | None = None) -> Floats:
    """sup Σ‖e_k‖²/Σ‖δ_k‖² by the direct bound: (1 + 1/θ)/(1 − (1 + θ)r²), infinite if (1 + θ)r² ≥ 1."""
    r = _contraction(r)
    theta = best_theta(r) if theta is None else _theta(theta)
    rate = np.asarray((1 + theta) * r**2)
    with np.errstate(divide="ignore"):
        return np.where(rate < 1, (1 + 1 / theta) / np.maximum(1 - rate, 0), np.inf)[()]


def impulse_energy(r: Real, theta: Real | None = None) -> tuple[Floats, Floats]:
    """Σ_k of both bounds for one unit perturbation: (decoupled, direct) = (1/(1 − r²), direct gain).

    Their ratio, (1 + r)/(1 − r) at the best θ, is the extra factor of about 2κ that squaring first costs here.
    """
    return 1 / (1 - _contraction(r) ** 2), direct_gain(r, theta)


def largest_adjoint_step(constants: Constants, weight: Real = 1.0) -> Floats:
    """Largest η ≤ 1/L for which weight·λ²‖ŷ − y*‖² + L²‖v̂ − v*‖² contracts at rate 1 − ημ/2 (α = 1/L).

    Squaring leaves (2ηλ²/μ)‖ŷ − y*‖² in the adjoint's recursion, which the inner contraction has to absorb:
    (weight + 2ηL²/μ)(1 − 1/κ) ≤ weight·(1 − ημ/2). With weight 1 (the earlier analysis) η = Θ(κ⁻²)/L; a weight of
    order κ² already allows η = Θ(1)/L. This, not Young's inequality as such, is where AID's sixth κ comes from.
    """
    weight = positive(weight, "weight", "it multiplies the inner error in the potential")
    mu, L, kappa = constants.mu, constants.L, constants.kappa
    limit = (weight / kappa) / ((2 * L**2 / mu) * (1 - 1 / kappa) + weight * mu / 2)
    return np.minimum(limit, 1 / L)


def _contraction(r: Real) -> Floats:
    r = number(r, "r")
    if np.any(r < 0) or np.any(r >= 1):
        raise ValueError(
            f"r must lie in [0, 1), got {r}: it is the factor by which the error shrinks per step"
        )
    return r


def _theta(theta: Real) -> Floats:
    return positive(theta, "theta", "it is the parameter of Young's inequality")


def _norms(perturbations: Real) -> np.ndarray:
    return np.atleast_1d(nonnegative(perturbations, "perturbations", "they are the norms ‖δ_k‖"))
