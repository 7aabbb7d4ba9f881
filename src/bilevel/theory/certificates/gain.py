"""Positive linear error systems, their certificates, and the closed loop, which `sharp` and `tight` sum.

All norm recursions here have the form of a *positive* linear system,

    w_k ≤ P w_{k−1} + β q ‖h_{k−1}‖,     e_k ≤ cᵀw_k + C₅,     h_k the estimate of ∇Φ(x_k), e_k its error.

*Closed loop*: ‖h_k‖ ≤ g_k + e_k with g_k = ‖∇Φ(x_k)‖. The descent lemma connects g and e: for β ≤ 1/L_Φ,

    Σ_{k<K} g_k² ≤ 2·gap/β + Σ_{k<K} e_k².

The impulse response of a positive system is non-negative. By Young's convolution inequality its ℓ₂ gain is
its sum, the response to a constant input: open loop T = β·1ᵀ(I − P)⁻¹q, closed loop G = T/(1 − T). Proofs:
documentation, "Certificates by exact gain".
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevel.theory.certificates.certificate import Certificate, Errors, inverse
from bilevel.theory.reals import Floats, Real

EVERY_STEP = (
    "every outer step is certified, and the bound falls with it: L_Phi is zero, so Φ is linear and no error feeds "
    "back; choose a step size yourself"
)


@dataclass(frozen=True)
class ErrorSystem(ABC):
    """w_k ≤ P w_{k−1} + βq‖h_{k−1}‖ and e_k ≤ c0·w_k[0] + w_k[1] + C5 with P = [[r0, 0], [p, r1]].

    States are scaled so that they add to e_k with the weights c = (c0, 1). `beta_cap` collects the bounds on β
    that the lemmas themselves need.
    """

    r0: Floats
    q0: Floats
    beta_cap: Floats
    r1: Floats = 0.0
    p: Floats = 0.0
    q1: Floats = 0.0
    C5: Floats = 0.0
    c0: Floats = 1.0

    @property
    def unit_gain(self) -> Floats:
        """Return T/β = cᵀ(I − P)⁻¹q, by forward substitution."""
        first = self.q0 / (1 - self.r0)
        return self.c0 * first + (self.p * first + self.q1) / (1 - self.r1)

    @property
    @abstractmethod
    def beta_max(self) -> Floats:
        """Return the supremum of the β that are admissible for every number of steps."""

    @abstractmethod
    def bound(self, beta: Floats, steps: Floats, gap: Floats, w0: Floats, w1: Floats) -> Floats:
        """Return a bound on (1/K) Σ g_k²; infinite where β is not admissible."""

    def best_beta(self, steps: Floats, gap: Floats, w0: Floats, w1: Floats, slack: Floats = 0.0) -> Floats:
        """Return the largest β whose bound is within `slack` of the lowest. Every β gives a valid bound."""
        if not np.all(np.isfinite(self.beta_cap)):
            raise ValueError(EVERY_STEP)
        objective = lambda beta: self.bound(beta, steps, gap, w0, w1)
        # Twelve decades below `beta_max`, which may itself be far below the cap.
        below_cap = np.log10(self.beta_cap / np.asarray(self.beta_max))
        decades = max(18.0, 12 + float(np.max(below_cap, initial=0.0)))
        return largest_good_step(objective, self.beta_cap, slack, decades)


@dataclass(frozen=True)
class ClosedLoop(ErrorSystem):
    """Closed loop, driven by g + e. It is admissible while G < 1, so while T < 1/2."""

    @property
    def beta_max(self) -> Floats:
        """Return min(beta_cap, 1/(2·unit_gain)), beyond which G ≥ 1."""
        return np.minimum(self.beta_cap, 0.5 * inverse(self.unit_gain))

    def gain(self, beta: Floats) -> Floats:
        """Return the closed-loop ℓ₂ gain G = T/(1 − T) from g to the error; infinite for T ≥ 1."""
        T = np.asarray(beta * self.unit_gain)
        with np.errstate(divide="ignore"):
            return np.where(T < 1, T / np.maximum(1 - T, 0), np.inf)[()]

    def transient(self, beta: Floats, w0: Floats, w1: Floats) -> Floats:
        """Return I₀ = (Σ_k (1ᵀFᵏw)²)^½ for F = P + βq1ᵀ: the response to the initial errors."""
        q0, q1 = beta * self.q0, beta * self.q1
        F = (self.r0 + q0, q0), (self.p + q1, self.r1 + q1)
        stable = np.asarray(beta * self.unit_gain) < 1
        moving = np.greater(w0, 0) | np.greater(w1, 0)
        found = free_response(F, (1.0, 1.0), w0, w1, stable)
        return np.where(stable, found, np.where(moving, np.inf, 0))[()]

    @np.errstate(over="ignore", invalid="ignore")
    def bound(self, beta: Floats, steps: Floats, gap: Floats, w0: Floats, w1: Floats) -> Floats:
        """Return S²/K, with S the larger root of S² = 2·gap/β + (G·S + J)² and J = I₀ + (1 + G)C₅√K."""
        G = np.asarray(self.gain(beta))
        admissible = (G < 1) & (np.asarray(beta) <= self.beta_cap)
        G = np.where(admissible, G, 0)
        J = np.where(admissible, self.transient(beta, w0, w1), 0) / np.sqrt(steps) + (1 + G) * self.C5
        energy = 2 * gap / (beta * steps)
        # In units of √K, so that s² is the mean itself and nothing overflows for long horizons.
        s = (G * J + np.sqrt((G * J) ** 2 + (1 - G**2) * (energy + J**2))) / (1 - G**2)
        return np.where(admissible & ~np.isnan(s), s**2, np.inf)[()]


# From ‖y₀ − y*(x₀)‖ and ‖v₀ − v*(x₀)‖ to the system's errors.
InitialErrors = Callable[[Floats, Floats | None], Errors]


@dataclass(frozen=True)
class SystemCertificate(Certificate):
    """Bounds for any admissible β. `weights` scale the two errors to the states; ITD has only one."""

    system: ErrorSystem
    weights: tuple[Floats, Floats]
    start: InitialErrors
    inner_steps: int = 1
    adjoint_steps: int = 1

    @property
    def beta_max(self) -> Floats:
        return self.system.beta_max

    @property
    def C5(self) -> Floats:
        """Return the part of the hypergradient error that does not vanish with the errors."""
        return self.system.C5

    @property
    def inherent_error(self) -> Floats:
        """Return C₅²: the limit of the bound as K → ∞ and β → 0 with βK → ∞."""
        return self.C5**2

    def limit(self, beta: Real) -> Floats:
        """Return the limit of the bound as K → ∞ with β fixed; infinite where β is not certified."""
        return self.bound_from(2.0**60, 0.0, (0.0, 0.0), beta)

    def _errors(self, y_error: Floats, v_error: Floats | None) -> Errors:
        return self.start(y_error, v_error)

    def _bound(self, steps: Floats, gap: Floats, errors: Errors, beta: Floats) -> Floats:
        bound = self.system.bound(beta, steps, gap, *self._states(errors))
        return np.where(np.isinf(errors[0]) | np.isinf(errors[1]), np.inf, bound)[()]

    def _best_beta(self, steps: Floats, gap: Floats, errors: Errors, slack: Floats) -> Floats:
        return self.system.best_beta(steps, gap, *self._states(errors), slack=slack)

    def _states(self, errors: Errors) -> Errors:
        # An infinite error marks a start that the analysis does not cover.
        y, v = (np.where(np.isinf(error), 0.0, error)[()] for error in errors)
        with np.errstate(over="ignore"):
            return self.weights[0] * y, np.asarray(self.weights[1] * v)[()]


def free_response(P: Any, row: Any, a: Floats, b: Floats, stable: Any) -> Floats:
    """Return (Σ_k (row·P^k z)²)^½ for z = (a, b), which has no meaning where P is not `stable`.

    The square is zᵀXz with X = PᵀXP + rowᵀrow, three linear equations.
    """
    (p, q), (r, s) = P
    p, q, r, s, u, w, a, b, stable = np.broadcast_arrays(p, q, r, s, *row, a, b, stable)
    rows = [
        [1 - p * p, -2 * p * r, -r * r],
        [-p * q, 1 - p * s - q * r, -r * s],
        [-q * q, -2 * q * s, 1 - s * s],
    ]
    matrix = np.stack([np.stack(each, axis=-1) for each in rows], axis=-2)
    matrix = np.where(stable[..., None, None], matrix, np.eye(3))
    right = np.where(stable[..., None], np.stack([u * u, u * w, w * w], axis=-1), 0.0)
    X = np.linalg.solve(matrix, right[..., None])[..., 0]
    return np.sqrt(np.maximum(X[..., 0] * a * a + 2 * X[..., 1] * a * b + X[..., 2] * b * b, 0))


def largest_good_step(
    objective: Callable[[Floats], Floats], largest: Floats, slack: Floats, decades: float = 18.0
) -> Floats:
    """Return the largest point up to `largest` at which a bound is within `slack` of its lowest value."""
    best = minimize_on_log_scale(objective, largest, decades)
    if not np.any(slack):
        return best
    # An infinite limit would admit steps that are not certified.
    with np.errstate(over="ignore"):
        limit = np.minimum((1 + np.asarray(slack)) * objective(best), np.finfo(float).max)
    return np.minimum(largest_below(objective, limit, best, largest), largest)


def minimize_on_log_scale(
    objective: Callable[[Floats], Floats], largest: Floats, decades: float = 18.0
) -> Floats:
    """Return the minimizer of `objective` on [10^−decades·largest, largest], elementwise over arrays.

    A zooming grid search assumes one basin at the grid's resolution. It is never worse than any grid point.
    """
    shape = np.shape(objective(largest))
    low, best, high = np.full(shape, -decades), np.zeros(shape), np.zeros(shape)
    position = np.linspace(0, 1, 49).reshape((-1,) + (1,) * len(shape))
    for _ in range(7):
        exponent = low + position * (high - low)
        i = np.argmin(objective(largest * 10.0**exponent), axis=0)[None]
        pick = lambda index, exponent=exponent: np.take_along_axis(exponent, index, axis=0)[0]
        best, low, high = pick(i), pick(np.maximum(i - 1, 0)), pick(np.minimum(i + 1, len(exponent) - 1))
    return np.asarray(largest * 10.0**best)[()]


def largest_below(
    objective: Callable[[Floats], Floats], limit: Floats, low: Floats, high: Floats, rounds: int = 30
) -> Floats:
    """Return the largest point of [low, high] with a value below `limit`, if `objective` rises."""
    first, last = (np.broadcast_to(end, np.shape(limit)) for end in (low, high))
    low, high = np.log(first), np.log(last)
    for _ in range(rounds):
        middle = 0.5 * (low + high)
        inside = objective(np.exp(middle)) <= limit
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    # exp(log(end)) may be outside [first, last].
    return np.where(objective(last) <= limit, last, np.clip(np.exp(low), first, last))[()]
