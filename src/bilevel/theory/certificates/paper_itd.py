"""Theorem 5.17: single-loop ITD, (1/K) Σ ‖∇Φ(x_k)‖² = O(κ³/K + κ²), with every constant explicit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bilevel.theory.certificates.certificate import Errors, OneBeta, smallest
from bilevel.theory.certificates.warmup import steps_to_reach
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, fraction, nonnegative, positive


@dataclass(frozen=True)
class ITDCertificate(OneBeta):
    """Step sizes, constants and bounds of Theorem 5.17 (paper's symbols, α = 1/L).

    ‖∇̂Φ(x_k) − ∇Φ(x_k)‖ ≤ C₄‖ŷ_k − y*_k‖ + C₅ with C₄ = L + αL² + αρM and C₅ = M(1 − αμ)L/μ + αρMR_y, as long
    as ‖y_k⁰ − y*_k‖ ≤ R_y, which the radius lemma (5.12) guarantees from ‖y₀ − y*₀‖ ≤ R_y.
    """

    R_y: Floats
    R_y_min: Floats
    C4: Floats
    C5: Floats

    @property
    def C6(self) -> Floats:
        """Contraction of ‖ŷ_k − y*_k‖: C₆ = 1 − μα + LβC₄/μ ≤ 1 − μ/2L."""
        k = self.constants
        return 1 - k.mu * self.alpha + k.L * self.beta * self.C4 / k.mu

    @property
    def C7(self) -> Floats:
        """Constant drift of ‖ŷ_k − y*_k‖: C₇ = LβC₅/μ."""
        return self.constants.kappa * self.beta * self.C5

    @property
    def A(self) -> Floats:
        """A = (β/2 − β²L_Φ) − (β/2 + β²L_Φ)·48L⁴β²C₄²/μ⁴ ≥ 33β/128 (this A carries β, unlike AID's)."""
        descent = self.beta * self.constants.L_Phi
        return self.beta * ((0.5 - descent) - (0.5 + descent) * self._feedback)

    def B1(self, a0: Floats) -> Floats:
        """B₁ = (β/2 + β²L_Φ)·8LC₄²/μ·‖ŷ₀ − y*₀‖²."""
        return self._b1(nonnegative(a0, "a0", "it is the distance of ŷ₀ from y*₀"))

    def _b1(self, a0: Floats) -> Floats:
        return self._error_weight * 8 * self.constants.kappa * (self.C4 * a0) ** 2

    @property
    def B2(self) -> Floats:
        """B₂ = (β/2 + β²L_Φ)·48L⁴β²C₄²C₅²/μ⁴."""
        return self._error_weight * self._feedback * self.C5**2

    @property
    def inherent_error(self) -> Floats:
        """The part of the bound that no number of steps removes: B₂/A + (β/2 + β²L_Φ)·2C₅²/A."""
        return (self.B2 + 2 * self._error_weight * self.C5**2) / self.A

    def errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        """(‖ŷ₀ − y*₀‖, 0); infinite where y₀ is outside R_y, of which the theorem says nothing."""
        inside = np.less_equal(y_error, self.R_y * (1 + 1e-12))
        return np.where(inside, (1 - 1 / self.constants.kappa) * y_error, np.inf)[()], 0.0

    def at_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        """(gap + B₁)/(AK) + inherent_error."""
        return (gap + self._b1(errors[0])) / (self.A * steps) + self.inherent_error

    def warmup_steps(self, D_y: Real) -> int | np.ndarray:
        """Gradient steps on g(x₀, ·) that bring ‖y₀ − y*₀‖ from D_y down to R_y."""
        return steps_to_reach(self.constants, D_y, self.R_y)

    @property
    def _error_weight(self) -> Floats:
        return self.beta * (0.5 + self.beta * self.constants.L_Phi)

    @property
    def _feedback(self) -> Floats:
        k = self.constants
        return 48 * (k.kappa**2 * self.beta * self.C4) ** 2


def itd(constants: Constants, R_y: Real | None = None, c: Real = 1.0) -> ITDCertificate:
    """Theorem 5.17's certificate.

    β = c·min{μ³/(2L(2L² + ρM)), 1/(8L_Φ), μ²/(16L²C₄)} with α = 1/L. `R_y` is the radius within which the
    warm-started inner iterates stay; the theorem needs R_y ≥ μLM/(2L² + ρM), the default.
    """
    constants = Constants.of(constants)
    mu, L, M, rho = constants.mu, constants.L, constants.M, constants.rho
    alpha = 1 / L
    R_y_min = smallest_radius(constants)
    R_y = R_y_min if R_y is None else _admissible(R_y, R_y_min)
    C4, C5 = estimator_constants(constants, R_y, alpha)
    terms = {
        "radius": mu**3 / (2 * L * (2 * L**2 + rho * M)),
        "smoothness": 1 / (8 * constants.L_Phi),
        "error feedback": mu**2 / (16 * L**2 * C4),
    }
    beta = fraction(c, "c") * smallest(terms)[0]
    return ITDCertificate("paper", "ITD", constants, alpha, None, terms, beta, R_y, R_y_min, C4, C5)


def smallest_radius(constants: Constants) -> Floats:
    """R_y's admissible minimum in Theorem 5.17: μLM/(2L² + ρM)."""
    mu, L, M, rho = constants.mu, constants.L, constants.M, constants.rho
    return mu * L * M / (2 * L**2 + rho * M)


def estimator_constants(constants: Constants, R_y: Floats, alpha: Floats) -> tuple[Floats, Floats]:
    """C₄ = L + αL² + αρM and C₅ = M(1 − αμ)L/μ + αρMR_y of the hypergradient's error, for any α ≤ 1/L."""
    mu, L, M, rho = constants.mu, constants.L, constants.M, constants.rho
    return L + alpha * L**2 + alpha * rho * M, M * (1 - alpha * mu) * L / mu + alpha * rho * M * R_y


def radius_beta(constants: Constants, R_y: Real, alpha: Floats | None = None) -> Floats:
    """Lemma 5.12: the largest β that keeps ‖y_k⁰ − y*_k‖ ≤ R_y for all k, with α ≤ 1/L (1/L by default).

    β ≤ αμ²R_y/(LG) with G = M(1 + αL) a bound on ITD's estimated hypergradient. G bounds ∇_x f too, so here M
    has to bound the whole of ∇f. Infinite when M = 0: then x never moves.
    """
    constants, R_y = Constants.of(constants), nonnegative(R_y, "R_y", "it is a radius around y*(x)")
    alpha = 1 / constants.L if alpha is None else positive(alpha, "alpha", "it is the inner step size")
    G = constants.M * (1 + alpha * constants.L)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(G > 0, alpha * constants.mu**2 * R_y / (constants.L * np.asarray(G)), np.inf)[()]


def _admissible(R_y: Real, R_y_min: Floats) -> Floats:
    R_y = nonnegative(R_y, "R_y", "it is a radius around y*(x)")
    # The minimum itself is admissible, also after a round trip through decimal text.
    short = np.less(R_y, R_y_min * (1 - 1e-12))
    if np.any(short):
        asked, needed = (np.broadcast_to(a, short.shape)[short].flat[0] for a in (R_y, R_y_min))
        raise ValueError(
            f"R_y = {asked:g} is smaller than mu·L·M/(2L² + rho·M) = {needed:g}, the smallest radius that the "
            "step size of Theorem 5.17 keeps the inner iterates in; raise R_y or leave it out"
        )
    return R_y
