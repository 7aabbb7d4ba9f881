"""Theorems 5.9 and 5.17 with every constant explicit: single-loop AID is O(κ⁵/K), ITD is O(κ³/K + κ²)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilevel.theory.certificates.certificate import Errors, OneBeta, smallest
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, fraction, nonnegative, positive


class Complexity(NamedTuple):
    """Oracle calls for an ε-stationary point; Gc includes the warm-up gradients."""

    iterations: int | np.ndarray
    warmup: int | np.ndarray
    Gc: int | np.ndarray
    Mv: int | np.ndarray


@dataclass(frozen=True)
class AIDCertificate(OneBeta):
    """Step sizes, constants and bounds of Theorem 5.9: AID (paper's symbols, α = η = 1/L).

    Potential E_k = ‖v̂_k − ṽ*_k‖ + C₁‖ŷ_k − y*_k‖, which obeys E_k ≤ (1 − μ/2L) E_{k−1} + βC₂‖∇Φ(x_{k−1})‖
    and dominates the hypergradient error, ‖∇̂Φ(x_k) − ∇Φ(x_k)‖ ≤ L·E_k. The bound is
    gap/(βAK) + 2L³(1 + 2βL_Φ)E₀²/(μAK), and `errors` are (‖ŷ₀ − y*₀‖, ‖v̂₀ − ṽ*₀‖).
    """

    C0: Floats
    C1: Floats
    C2: Floats
    C3: Floats

    @property
    def A(self) -> Floats:
        """Return the descent factor A = 1/2 − βL_Φ − (1/2 + βL_Φ)·12β²C₂²L⁴/μ² ≥ 33/128."""
        k = self.constants
        descent = self.beta * k.L_Phi
        return 0.5 - descent - (0.5 + descent) * 12 * (self.beta * self.C2 * k.L**2 / k.mu) ** 2

    def E0_bound(self, c_y: Real = 1.0) -> Floats:
        """Return the bound M/L + M/μ + C₁c_yμ on E₀, for v₀ = 0 and ‖y₀ − y*₀‖ ≤ c_yμ (Lemma 5.8)."""
        k, c_y = self.constants, positive(c_y, "c_y")
        return k.M / k.L + k.M / k.mu + self.C1 * c_y * k.mu

    def warmup_steps(self, D_y: Real, c_y: Real = 1.0) -> int | np.ndarray:
        """Return the gradient steps on g(x₀, ·) that bring ‖y₀ − y*₀‖ from D_y down to c_yμ."""
        return steps_to_reach(self.constants, D_y, positive(c_y, "c_y") * self.constants.mu)

    def _errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        return start_of_aid(self.constants, self.C0, y_error, v_error)

    def _at_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        return self._scaled_bound(gap, errors[1] + self.C1 * errors[0]) / steps

    def complexity(self, eps: Real, gap: Real, D_y: Real = 0.0, c_y: Real = 1.0) -> Complexity:
        """Return the iterations K with bound(K) ≤ ε from v₀ = 0 and y₀ at distance D_y, and their cost."""
        eps = positive(eps, "eps")
        K = _whole_number(np.maximum(np.ceil(self._scaled_bound(gap, self.E0_bound(c_y)) / eps), 1))
        warmup = self.warmup_steps(D_y, c_y)
        # Per iteration three gradients (∇_y g, ∇_x f, ∇_y f) and two products (Hessian, cross).
        return Complexity(iterations=K, warmup=warmup, Gc=3 * K + warmup, Mv=2 * K)

    def _scaled_bound(self, gap: Real, E0: Real) -> Floats:
        """Return K times the bound, which does not depend on K."""
        k, gap = self.constants, nonnegative(gap, "gap")
        start = 2 * k.L**3 * (1 + 2 * self.beta * k.L_Phi) / k.mu * E0**2
        return (gap / self.beta + start) / self.A


def aid(constants: Constants, c: Real = 1.0) -> AIDCertificate:
    """Return Theorem 5.9's certificate.

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
    """Return (‖ŷ₀ − y*₀‖, ‖v̂₀ − ṽ*₀‖) after the first update with α = η = 1/L."""
    inner = 1 - 1 / constants.kappa
    # ‖ṽ*‖ ≤ M/μ, and ‖ṽ* − v*‖ ≤ C₀‖ŷ₀ − y*₀‖.
    a0 = inner * y_error
    return a0, inner * (constants.M / constants.mu if v_error is None else v_error + C0 * a0)


def _whole_number(count: Floats) -> int | np.ndarray:
    """Return scalars as Python integers, which cannot overflow; arrays beyond 64 bits remain floats."""
    if not np.all(np.isfinite(count)):
        raise ValueError(
            "the number of iterations is beyond what float64 holds: pass a larger eps, or a smaller gap, D_y or c_y"
        )
    if np.ndim(count) == 0:
        return int(count)
    return np.asarray(count, float if np.any(count >= 2.0**61) else np.int64)


@dataclass(frozen=True)
class ITDCertificate(OneBeta):
    """Step sizes, constants and bounds of Theorem 5.17: ITD (paper's symbols, α = 1/L).

    ‖∇̂Φ(x_k) − ∇Φ(x_k)‖ ≤ C₄‖ŷ_k − y*_k‖ + C₅ with C₄ = L + αL² + αρM and C₅ = M(1 − αμ)L/μ + αρMR_y, as long
    as ‖y_k⁰ − y*_k‖ ≤ R_y. The radius lemma (5.12) guarantees this from ‖y₀ − y*₀‖ ≤ R_y. The bound is
    (gap + B₁)/(AK) + inherent_error. `errors` are (‖ŷ₀ − y*₀‖, 0), infinite where y₀ is outside R_y.
    """

    R_y: Floats
    R_y_min: Floats
    C4: Floats
    C5: Floats

    @property
    def C6(self) -> Floats:
        """Return the contraction of ‖ŷ_k − y*_k‖: C₆ = 1 − μα + LβC₄/μ ≤ 1 − μ/2L."""
        k = self.constants
        return 1 - k.mu * self.alpha + k.L * self.beta * self.C4 / k.mu

    @property
    def C7(self) -> Floats:
        """Return the constant drift of ‖ŷ_k − y*_k‖: C₇ = LβC₅/μ."""
        return self.constants.kappa * self.beta * self.C5

    @property
    def A(self) -> Floats:
        """Return A = (β/2 − β²L_Φ) − (β/2 + β²L_Φ)·48L⁴β²C₄²/μ⁴ ≥ 33β/128, which carries β, unlike AID's."""
        descent = self.beta * self.constants.L_Phi
        return self.beta * ((0.5 - descent) - (0.5 + descent) * self._feedback)

    def B1(self, a0: Floats) -> Floats:
        """Return B₁ = (β/2 + β²L_Φ)·8LC₄²/μ·‖ŷ₀ − y*₀‖²."""
        return self._b1(nonnegative(a0, "a0", "it is the distance of ŷ₀ from y*₀"))

    def _b1(self, a0: Floats) -> Floats:
        return self._error_weight * 8 * self.constants.kappa * (self.C4 * a0) ** 2

    @property
    def B2(self) -> Floats:
        """Return B₂ = (β/2 + β²L_Φ)·48L⁴β²C₄²C₅²/μ⁴."""
        return self._error_weight * self._feedback * self.C5**2

    @property
    def inherent_error(self) -> Floats:
        """Return B₂/A + (β/2 + β²L_Φ)·2C₅²/A: the limit of the bound as K → ∞."""
        return (self.B2 + 2 * self._error_weight * self.C5**2) / self.A

    def _errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        return start_of_itd(self.constants, self.R_y, y_error)

    def _at_beta(self, steps: Floats, gap: Floats, errors: Errors) -> Floats:
        return (gap + self._b1(errors[0])) / (self.A * steps) + self.inherent_error

    def warmup_steps(self, D_y: Real) -> int | np.ndarray:
        """Return the gradient steps on g(x₀, ·) that bring ‖y₀ − y*₀‖ from D_y down to R_y."""
        return steps_to_reach(self.constants, D_y, self.R_y)

    @property
    def _error_weight(self) -> Floats:
        return self.beta * (0.5 + self.beta * self.constants.L_Phi)

    @property
    def _feedback(self) -> Floats:
        k = self.constants
        return 48 * (k.kappa**2 * self.beta * self.C4) ** 2


def itd(constants: Constants, R_y: Real | None = None, c: Real = 1.0) -> ITDCertificate:
    """Return Theorem 5.17's certificate.

    β = c·min{μ³/(2L(2L² + ρM)), 1/(8L_Φ), μ²/(16L²C₄)} with α = 1/L. The warm-started inner iterates stay
    within the radius `R_y`; the theorem needs R_y ≥ μLM/(2L² + ρM), the default.
    """
    constants = Constants.of(constants)
    mu, L, M, rho = constants.mu, constants.L, constants.M, constants.rho
    alpha = 1 / L
    R_y_min = mu * L * M / (2 * L**2 + rho * M)
    R_y = R_y_min if R_y is None else _admissible_radius(R_y, R_y_min)
    C4, C5 = estimator_constants(constants, R_y, alpha)
    terms = {
        "radius": mu**3 / (2 * L * (2 * L**2 + rho * M)),
        "smoothness": 1 / (8 * constants.L_Phi),
        "error feedback": mu**2 / (16 * L**2 * C4),
    }
    beta = fraction(c, "c") * smallest(terms)[0]
    return ITDCertificate("paper", "ITD", constants, alpha, None, terms, beta, R_y, R_y_min, C4, C5)


def start_of_itd(constants: Constants, R_y: Floats, y_error: Floats) -> Errors:
    """Return (‖ŷ₀ − y*₀‖, 0) after the first update; infinite where y₀ is outside R_y."""
    inside = np.less_equal(y_error, R_y * (1 + 1e-12))
    return np.where(inside, (1 - 1 / constants.kappa) * y_error, np.inf)[()], 0.0


def estimator_constants(constants: Constants, R_y: Floats, alpha: Floats) -> tuple[Floats, Floats]:
    """Return C₄ = L + αL² + αρM and C₅ = M(1 − αμ)L/μ + αρMR_y of ITD's error, for any α ≤ 1/L."""
    mu, L, M, rho = constants.mu, constants.L, constants.M, constants.rho
    return L + alpha * L**2 + alpha * rho * M, M * (1 - alpha * mu) * L / mu + alpha * rho * M * R_y


def radius_beta(constants: Constants, R_y: Real, alpha: Floats | None = None) -> Floats:
    """Return the largest β that keeps ‖y_k⁰ − y*_k‖ ≤ R_y for all k (Lemma 5.12), for α ≤ 1/L (default 1/L).

    β ≤ αμ²R_y/(LG); G = M(1 + αL) bounds ITD's estimate if M bounds all of ∇f. It is infinite for M = 0.
    """
    constants, R_y = Constants.of(constants), nonnegative(R_y, "R_y")
    alpha = 1 / constants.L if alpha is None else positive(alpha, "alpha")
    G = constants.M * (1 + alpha * constants.L)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(G > 0, alpha * constants.mu**2 * R_y / (constants.L * np.asarray(G)), np.inf)[()]


def _admissible_radius(R_y: Real, R_y_min: Floats) -> Floats:
    R_y = nonnegative(R_y, "R_y")
    # The minimum itself is admissible, also after a round trip through decimal text.
    short = np.less(R_y, R_y_min * (1 - 1e-12))
    if np.any(short):
        asked, needed = (np.broadcast_to(a, short.shape)[short].flat[0] for a in (R_y, R_y_min))
        raise ValueError(
            f"R_y = {asked:g} is smaller than mu·L·M/(2L² + rho·M) = {needed:g}, the smallest radius "
            "in which Theorem 5.17 keeps the inner iterates; raise R_y or leave it out"
        )
    return R_y


def steps_to_reach(constants: Constants, D_y: Real, target: Floats) -> int | np.ndarray:
    """Return the smallest N with (1 − μ/L)^N · D_y ≤ target: ⌈log(D_y/target)₊ / log(1/(1 − μ/L))⌉.

    These are gradient steps of 1/L on g(x₀, ·) (Lemmas 5.8 and 5.12). For μ = L one step is exact.
    """
    D_y = nonnegative(D_y, "D_y", "it is the distance of the raw inner point from y*(x₀)")
    far = np.asarray(np.greater(D_y, target))
    contraction = np.asarray(1 - 1 / constants.kappa)
    if np.any(far & np.equal(target, 0) & (contraction > 0)):
        raise ValueError(
            "a target distance of 0 is never reached in finitely many steps; give a positive one"
        )
    # The two `where` discard the entries that divide by zero.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.divide(D_y, target)
        distance = np.where(np.isinf(ratio), np.log(D_y) - np.log(target), np.log(ratio))
        slow = np.ceil(distance / -np.log1p(-1 / np.asarray(constants.kappa)))
    count = np.where(far, np.where(contraction > 0, slow, 1), 0).astype(np.int64)
    return int(count) if count.ndim == 0 else count
