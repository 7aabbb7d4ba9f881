"""The paper's own lemmas, summed exactly: certificates for AID and ITD by ℓ₂ gain.

Theorems 5.9 and 5.17 bound the two-dimensional (AID) and one-dimensional (ITD) error recursion by a scalar potential
with round constants. Here the same recursions enter `certificates.gain` unchanged, so the difference between these
bounds and the paper's is the price of that potential alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bilevel.theory.certificates.gain import ErrorSystem
from bilevel.theory.certificates.paper_aid import aid as paper_aid
from bilevel.theory.certificates.paper_itd import itd as paper_itd, radius_beta
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, horizon, nonnegative, positive

GAP = "it is Φ(x₀) − inf Φ; at 0 there is nothing left to descend and no step size is best"


@dataclass(frozen=True)
class SharpAID:
    """AID with α = η = 1/L: bounds for any admissible β < beta_max, and the β with the lowest bound.

    Initial errors: a0 = ‖ŷ₀ − y*₀‖ and b0 = ‖v̂₀ − ṽ*₀‖ (after the first update of y and v).
    """

    constants: Constants
    alpha: Floats
    eta: Floats
    C3: Floats
    system: ErrorSystem

    @property
    def beta_max(self) -> Floats:
        """Supremum of the certified outer step sizes."""
        return self.system.beta_max

    @property
    def b0_bound(self) -> Floats:
        """‖v̂₀ − ṽ*₀‖ ≤ (1 − ημ)M/μ when v₀ = 0 (one contraction step towards ṽ*₀ from zero)."""
        k = self.constants
        return (1 - self.eta * k.mu) * k.M / k.mu

    def best_beta(self, gap: Real, a0: Real = 0.0, b0: Real | None = None) -> Floats:
        """Outer step size with the lowest bound; it does not depend on the number of steps."""
        return self.system.best_beta(1.0, positive(gap, "gap", GAP), *self._start(a0, b0))

    def bound(
        self,
        steps: Real,
        gap: Real,
        a0: Real = 0.0,
        b0: Real | None = None,
        beta: Real | None = None,
    ) -> Floats:
        """Bound on (1/K) Σ_{k<K} ‖∇Φ(x_k)‖² with outer step β (the best one by default).

        Infinite where β is not certified. `b0` defaults to `b0_bound`, which needs v₀ = 0.
        """
        beta = self.best_beta(gap, a0, b0) if beta is None else _step(beta)
        gap = nonnegative(gap, "gap", "it is Φ(x₀) − inf Φ")
        return self.system.bound(beta, 1.0, gap, *self._start(a0, b0)) / horizon(steps)

    def _start(self, a0: Real, b0: Real | None) -> tuple[Floats, Floats]:
        a0 = nonnegative(a0, "a0", "it is the initial inner error ‖ŷ₀ − y*(x₀)‖")
        b0 = self.b0_bound if b0 is None else nonnegative(b0, "b0", "it is the initial error ‖v̂₀ − ṽ*₀‖")
        return self.C3 * a0, self.constants.L * b0


@dataclass(frozen=True)
class SharpITD:
    """ITD with α = 1/L: bounds for any admissible β < beta_max, and the best β for a horizon.

    `y_error` is the initial inner error ‖ŷ₀ − y*₀‖.
    """

    constants: Constants
    alpha: Floats
    weight: Floats
    system: ErrorSystem
    R_y: Floats = np.inf

    @property
    def beta_max(self) -> Floats:
        """Supremum of the certified outer step sizes."""
        return self.system.beta_max

    @property
    def C5(self) -> Floats:
        """The part of the hypergradient error that does not vanish with ‖y_k⁰ − y*_k‖."""
        return self.system.C5

    @property
    def inherent_error(self) -> Floats:
        """C₅²: what remains of the bound as K → ∞ and β → 0 with βK → ∞."""
        return self.C5**2

    def limit(self, beta: Real) -> Floats:
        """What remains as K → ∞ with β fixed: C₅²(1 + G)²/(1 − G)²; infinite where β is not certified."""
        beta = _step(beta)
        return self.system.bound(beta, 1.0, 0.0, 0.0, 0.0)

    def best_beta(self, steps: Real, gap: Real, y_error: Real = 0.0) -> Floats:
        """Outer step size with the lowest bound for K steps; it shrinks like K^−½ where C₅ > 0."""
        return self.system.best_beta(horizon(steps), positive(gap, "gap", GAP), *self._start(y_error))

    def bound(
        self,
        steps: Real,
        gap: Real,
        y_error: Real = 0.0,
        beta: Real | None = None,
    ) -> Floats:
        """Bound on (1/K) Σ_{k<K} ‖∇Φ(x_k)‖² with outer step β (the best one for K by default)."""
        beta = self.best_beta(steps, gap, y_error) if beta is None else _step(beta)
        gap = nonnegative(gap, "gap", "it is Φ(x₀) − inf Φ")
        return self.system.bound(beta, horizon(steps), gap, *self._start(y_error))

    def _start(self, y_error: Real) -> tuple[Floats, Floats]:
        y_error = nonnegative(y_error, "y_error", "it is the initial inner error ‖ŷ₀ − y*(x₀)‖")
        return self.weight * y_error, 0.0


def aid(constants: Constants) -> SharpAID:
    """Exact gain of Lemmas 5.1, 5.3 and 5.5. With a_k = ‖ŷ_k − y*_k‖, b_k = ‖v̂_k − ṽ*_k‖, d_k = ‖x_k − x_{k−1}‖:

    a_k ≤ (1 − αμ)a_{k−1} + (L/μ)d_k,  b_k ≤ (1 − ημ)b_{k−1} + C₀αL·a_{k−1} + C₀(αL + 1)d_k,  e_k ≤ C₃a_k + L·b_k.
    """
    p, L = paper_aid(constants), constants.L
    system = ErrorSystem(
        r0=1 - p.alpha * constants.mu,
        r1=1 - p.eta * constants.mu,
        p=L * p.C0 * p.alpha * L / p.C3,
        q0=p.C3 * constants.kappa,
        q1=L * p.C0 * (p.alpha * L + 1),
        C5=0.0,
        beta_cap=1 / constants.L_Phi,
    )
    return SharpAID(constants, p.alpha, p.eta, p.C3, system)


def itd(constants: Constants, R_y: Real | None = None) -> SharpITD:
    """Exact gain of Lemmas 5.1 and 5.13. With a_k = ‖ŷ_k − y*_k‖ and d_k = ‖x_k − x_{k−1}‖:

    a_k ≤ (1 − αμ)a_{k−1} + (L/μ)d_k  and  e_k ≤ C₄a_k + C₅ while Lemma 5.12 holds (β ≤ αμ²R_y/(LG)).
    """
    p = paper_itd(constants, R_y)
    system = ErrorSystem(
        r0=1 - p.alpha * constants.mu,
        r1=0.0,
        p=0.0,
        q0=p.C4 * constants.kappa,
        q1=0.0,
        C5=p.C5,
        beta_cap=np.minimum(1 / constants.L_Phi, radius_beta(constants, p.R_y)),
    )
    return SharpITD(constants, p.alpha, p.C4, system, p.R_y)


def _step(beta: Real) -> Floats:
    return positive(beta, "beta", "it is the outer step size")
