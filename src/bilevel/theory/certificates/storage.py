"""Error systems driven by the step itself, which `star` sums exactly by a storage function.

The complete descent lemma, with c = βL_Φ and γ = 1 − c, is

    Σ_{k<K} g_k² + γ Σ_{k<K} ‖h_k‖² ≤ 2·gap/β + Σ_{k<K} e_k².

Its second sum pays for the errors, because only the steps β‖h_k‖ drive them: no loop needs to be closed. The
largest excess of the errors over their price in K steps, from the errors w₀, is a linear-quadratic optimum,

    sup Σ_{k<K} ((cᵀw_k)² − γ n_k²) = w₀ᵀX_K w₀,     w_k = P w_{k−1} + βq n_{k−1},
    X_0 = 0,     X_{j+1} = ccᵀ + Pᵀ(X_j + β²X_jq qᵀX_j / (γ − β²qᵀX_jq))P,

finite for all K if and only if T² ≤ γ, T = βu the gain. So Σ g_k² ≤ 2·gap/β + w₀ᵀX_K w₀. Proofs:
documentation, "κ⁴". `largest_step` and `lowest_mean` also serve `momentum` and `stochastic`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bilevel.theory.certificates.gain import ErrorSystem, largest_below
from bilevel.theory.reals import Floats

FOREVER = 2.0**80  # steps after which w₀ᵀX_K w₀ (for ITD its mean) is at its limit


@dataclass(frozen=True)
class Driven(ErrorSystem):
    """System driven by ‖h‖: admissible for every K while T² ≤ 1 − βL_Φ. `beta_cap` is 1/L_Φ."""

    @property
    def beta_max(self) -> Floats:
        """Return the root of β²u² + βL_Φ = 1, u = unit_gain, less a margin for rounding."""
        return (1 - 1e-7) * largest_step(1 / np.asarray(self.beta_cap), self.unit_gain)

    def bound(self, beta: Floats, steps: Floats, gap: Floats, w0: Floats, w1: Floats) -> Floats:
        """Return 2·gap/(βK) + w₀ᵀX_K w₀/K, or lower (`lowest_mean`)."""
        beta, steps = np.asarray(beta), np.asarray(steps)
        stored = lambda price: self.storage(beta, price, steps, w0, w1)
        with np.errstate(over="ignore", invalid="ignore"):
            T, price = np.asarray(beta * self.unit_gain), 1 - beta / self.beta_cap
            return lowest_mean(2 * gap / (beta * steps), price, T, stored)

    def last(
        self, beta: Floats, steps: Floats, gap: Floats, modulus: Floats, w0: Floats, w1: Floats
    ) -> Floats:
        """Return a bound on Φ(x_K) − inf Φ, if ‖∇Φ‖² ≥ 2m(Φ − inf Φ): σ²ᴷ(gap + (β/2σ²)w₀ᵀX_K w₀), σ² = 1 − βm.

        X_K belongs to the system with every coefficient divided by σ.
        """
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            decay = np.sqrt(np.maximum(1 - beta * modulus, 0))
            price = 1 - beta / np.asarray(self.beta_cap)
            scaled = {name: getattr(self, name) / decay for name in ("r0", "r1", "p", "q0", "q1")}
            stored = steps * replace(self, **scaled).storage(beta, price, steps, w0, w1)
            total = np.exp(2 * steps * np.log(decay)) * (gap + beta / (2 * decay**2) * stored)
        return np.where(np.isfinite(stored) & (decay > 0) & ~np.isnan(total), total, np.inf)[()]

    def linear_beta(self, modulus: Floats) -> Floats:
        """Return the largest β with T_σ² ≤ 1 − βL_Φ for every K; T_σ = β·cᵀ(σI − P)⁻¹q, σ² = 1 − βm."""

        @np.errstate(divide="ignore", invalid="ignore")
        def excess(beta: Floats) -> Floats:
            sigma = np.sqrt(np.maximum(1 - beta * modulus, 0))
            first = self.q0 / (sigma - self.r0)
            gain = beta * (self.c0 * first + (self.p * first + self.q1) / (sigma - self.r1))
            slow = (sigma <= self.r0) | (sigma <= self.r1)
            return np.where(slow, np.inf, gain**2 - (1 - beta / self.beta_cap))

        limit = np.zeros(np.shape(excess(self.beta_max)))
        return largest_below(excess, limit, self.beta_max * 1e-12, self.beta_max)

    def storage(self, beta: Floats, price: Floats, steps: Floats, w0: Floats, w1: Floats) -> Floats:
        """Return w₀ᵀX_K w₀/K, by doubling; infinite where no X_K exists."""
        # A constant error C₅ is an undriven state with r₁ = 1. Only ITD has one, and ITD has only one other state.
        constant = np.any(np.greater(self.C5, 0))
        r1, q1, w1 = (1.0, 0.0, self.C5) if constant else (self.r1, self.q1, w1)
        entries = self.c0, self.r0, r1, self.p, beta * self.q0, beta * q1, price, w0, w1, steps
        c0, r0, r1, p, q0, q1, price, w0, w1, steps = np.broadcast_arrays(*map(np.asarray, entries))
        ok = (price > 0) | ((q0 == 0) & (q1 == 0) & (price >= 0))
        push = 1 / np.sqrt(np.where(price > 0, price, 1.0))
        q0, q1 = q0 * push, q1 * push
        step = Stage(
            A=np.array([[r0, 0 * p], [p, r1]]),
            G=np.array([[q0 * q0, q0 * q1], [q0 * q1, q1 * q1]]),
            H=np.array([[c0 * c0, c0], [c0, np.ones_like(c0)]]),
        )
        count = np.minimum(steps, FOREVER)
        with np.errstate(over="ignore", invalid="ignore"):
            X, ok = _power(step, count, ok)
            energy = (X[0, 0] * w0 + 2 * X[0, 1] * w1) * w0 + X[1, 1] * w1**2
            mean = energy / (count if constant else steps)
        return np.where(ok & ~np.isnan(mean), mean, np.inf)


class Stage(NamedTuple):
    """Steps of the system: from w, with wᵀYw stored at the end, they gain at most wᵀ(H + AᵀY(I − GY)⁻¹A)w."""

    A: np.ndarray  # like the others, a 2 × 2 matrix in its first two axes
    G: np.ndarray
    H: np.ndarray


def _power(step: Stage, steps: Any, ok: Any) -> tuple[np.ndarray, Any]:
    """Return H of K equal stages, K = `steps` elementwise, by squaring, and where it exists."""
    left = np.floor(steps)
    eye = np.broadcast_to(np.eye(2).reshape(2, 2, *(1,) * np.ndim(steps)), step.A.shape)
    total = Stage(eye, np.zeros_like(step.G), np.zeros_like(step.H))
    while True:
        odd = left % 2 == 1
        if np.any(odd):
            joined, fine = _then(step, total)
            total = Stage(*(np.where(odd & fine, new, old) for new, old in zip(joined, total, strict=True)))
            ok = ok & (fine | ~odd)
        left = np.floor(left / 2)
        if not np.any(ok & (left > 0)):
            return total.H, ok
        step, fine = _then(step, step)
        ok = ok & (fine | (left == 0))
        # Once A is zero further steps change nothing; two more check that the storage stays finite.
        left = np.where(np.all(step.A == 0, axis=(0, 1)), np.minimum(left, 3), left)


def _then(first: Stage, second: Stage) -> tuple[Stage, Any]:
    """Return both stages in sequence, and where that is finite: all eigenvalues of G₁H₂ below one."""
    (a, b), (c, d) = _times(first.G, second.H)
    det = (1 - a) * (1 - d) - b * c
    fine = (a + d < 2) & (det > 0)
    inverse = np.where(fine, np.array([[1 - d, b], [c, 1 - a]]) / np.where(fine, det, 1), 0)
    to_second = _times(second.A, inverse)
    A = _times(to_second, first.A)
    G = second.G + _times(_times(to_second, first.G), second.A.swapaxes(0, 1))
    H = first.H + _times(_times(_times(first.A.swapaxes(0, 1), second.H), inverse), first.A)
    return Stage(A, G, H), fine


_times = partial(np.einsum, "ij...,jk...->ik...")


def largest_step(L_Phi: Floats, gain: Floats) -> Floats:
    """Return the β at which the price γ just pays for the errors: T² = γ, the root of β²u² + βL_Φ = 1."""
    with np.errstate(divide="ignore"):
        return (2 / np.asarray(L_Phi + np.hypot(L_Phi, 2 * gain)))[()]


def lowest_mean(descent: Floats, price: Floats, T: Floats, stored: Callable[[Floats], Floats]) -> Floats:
    """Return the lowest (descent + (1 + ω/s)·stored((γ − ω)/(1 + ω/s)))/(1 + ω/(1 + s)) over some ω.

    `stored(γ)` is the largest possible Σe² − γΣ‖h‖², and `descent` is 2·gap/β, both over K; γ is `price`. As g_k ≤
    ‖h_k‖ + e_k, ω‖h‖² is at least ω(g²/(1 + s) − e²/s) for any s > 0. So the part of the price that T² does not
    need can be converted into ‖∇Φ‖². This gains a factor of up to 2; ω = 0 is the lemma itself.
    """
    start = stored(price)
    lowest = np.asarray(descent + start)
    # T is the best s from an exact start, and √(stored/descent) where T is small.
    share = np.divide(start, descent, out=np.ones(lowest.shape), where=np.asarray(descent > 0))
    s = np.clip(np.maximum(T, np.sqrt(share)), 1e-6, 1e6)
    surplus = np.maximum(price - T**2, 0) / (1 + T**2 / s)
    # With all of the surplus, rounding could not separate finite from infinite.
    for omega in (0.5 * surplus, 0.999 * surplus):
        kept = stored((price - omega) / (1 + omega / s))
        lowest = np.fmin(lowest, (descent + (1 + omega / s) * kept) / (1 + omega / (1 + s)))
    return lowest[()]
