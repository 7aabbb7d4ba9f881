"""Error systems driven by the step itself, summed exactly by a storage function: what `star` sums.

The descent lemma with nothing dropped, c = βL_Φ and γ = 1 − c, reads

    Σ_{k<K} g_k² + γ Σ_{k<K} ‖h_k‖² ≤ 2·gap/β + Σ_{k<K} e_k².

Its second sum pays for the errors, because the steps β‖h_k‖ are all that drives them: no loop needs to be closed. The
most that errors can exceed their price over K steps, from the errors w₀, is a linear-quadratic optimum,

    sup Σ_{k<K} ((cᵀw_k)² − γ n_k²) = w₀ᵀX_K w₀,     w_k = P w_{k−1} + βq n_{k−1},
    X_0 = 0,     X_{j+1} = ccᵀ + Pᵀ(X_j + β²X_jq qᵀX_j / (γ − β²qᵀX_jq))P,

finite for all K if and only if T² ≤ γ. So Σ g_k² ≤ 2·gap/β + w₀ᵀX_K w₀. Proofs: documentation, "κ⁴".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bilevel.theory.certificates.gain import ErrorSystem
from bilevel.theory.reals import Floats

SHARES = np.array([0.0, 0.5, 1.0])  # of the surplus in ‖h‖² that is turned into ‖∇Φ‖²


@dataclass(frozen=True)
class Driven(ErrorSystem):
    """Driven by ‖h‖: admissible for every K while T² ≤ 1 − βL_Φ, and for few steps beyond. `beta_cap` is 1/L_Φ."""

    @property
    def beta_max(self) -> Floats:
        """The root of β²u² + βL_Φ = 1, u = unit_gain."""
        L_Phi = 1 / np.asarray(self.beta_cap)
        return (2 / (L_Phi + np.sqrt(L_Phi**2 + 4 * self.unit_gain**2)))[()]

    def bound(self, beta: Floats, steps: Floats, gap: Floats, w0: Floats, w1: Floats) -> Floats:
        """(2·gap/β + (1 + ω/T)w₀ᵀX_K w₀)/(1 + ω/(1 + T))/K, with γ lowered to (γ − ω)/(1 + ω/T).

        ω = 0 is the bound above. As g_k ≤ ‖h_k‖ + e_k, ω‖h‖² is at least ω(g²/(1 + T) − e²/T), so a part of the price can
        be turned into ‖∇Φ‖² itself; from an exact start all that T² does not need, which gains up to a factor of two.
        """
        beta, steps = np.asarray(beta), np.asarray(steps)
        T = np.asarray(beta * self.unit_gain)
        price = 1 - beta / self.beta_cap
        s = np.maximum(T, 1e-3)
        surplus = np.maximum(price - T**2, 0) / (1 + T**2 / s)
        omega = surplus * SHARES.reshape((-1,) + (1,) * np.ndim(surplus))
        stored = self.storage(beta, (price - omega) / (1 + omega / s), steps, w0, w1)
        with np.errstate(invalid="ignore"):
            total = (2 * gap / (beta * steps) + (1 + omega / s) * stored) / (1 + omega / (1 + s))
        # No price is left at β = 1/L_Φ: certified only if nothing drives the errors.
        return np.min(np.where(np.isfinite(total), total, np.inf), axis=0)[()]

    def storage(self, beta: Floats, price: Floats, steps: Floats, w0: Floats, w1: Floats) -> Floats:
        """w₀ᵀX_K w₀/K, by doubling; infinite where no X_K exists.

        A constant error C₅ is a state that stays: r₁ = 1, undriven. Only ITD has one, and ITD has one other state.
        """
        constant = np.any(np.greater(self.C5, 0))
        r1, q1, w1 = (1.0, 0.0, self.C5) if constant else (self.r1, self.q1, w1)
        entries = self.c0, self.r0, r1, self.p, beta * self.q0, beta * q1, price, w0, w1, steps
        c0, r0, r1, p, q0, q1, price, w0, w1, steps = np.broadcast_arrays(*map(np.asarray, entries))
        ok = (price > 0) | ((q0 == 0) & (q1 == 0) & (price >= 0))
        push = 1 / np.sqrt(np.where(price > 0, price, 1.0))
        q0, q1 = q0 * push, q1 * push
        one = np.ones_like(c0)
        step = Stage(A=_matrix(r0, 0 * p, p, r1), G=_outer(q0, q1), H=_outer(c0, one))
        X, ok = _power(step, steps, ok)
        energy = (X[..., 0, 0] * w0 + 2 * X[..., 0, 1] * w1) * w0 + X[..., 1, 1] * w1**2
        return np.where(ok, energy / steps, np.inf)


class Stage(NamedTuple):
    """Some steps of the system: from w, with wᵀYw stored at the end, at most wᵀ(H + AᵀY(I − GY)⁻¹A)w is gained."""

    A: np.ndarray
    G: np.ndarray
    H: np.ndarray


def _power(step: Stage, steps: np.ndarray, ok: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """H of K equal stages, K = `steps` elementwise, by squaring; and where it exists."""
    eye, left = np.eye(2), np.floor(steps)
    total = Stage(np.broadcast_to(eye, step.A.shape), np.zeros_like(step.G), np.zeros_like(step.H))
    while np.any(left > 0):
        odd = left % 2 == 1
        joined, fine = _then(step, total, ok & odd)
        choose = odd[..., None, None]
        total = Stage(*(np.where(choose, new, old) for new, old in zip(joined, total, strict=True)))
        ok = ok & (fine | ~odd)
        left = np.floor(left / 2)
        if np.any(left > 0):
            doubled, fine = _then(step, step, ok & (left > 0))
            step, ok = doubled, ok & (fine | (left == 0))
    return total.H, ok


def _then(first: Stage, second: Stage, ok: np.ndarray) -> tuple[Stage, np.ndarray]:
    """The two stages one after the other, and where that is finite: all eigenvalues of G₁H₂ below one."""
    loop = first.G @ second.H
    half = np.trace(loop, axis1=-2, axis2=-1) / 2
    det = loop[..., 0, 0] * loop[..., 1, 1] - loop[..., 0, 1] * loop[..., 1, 0]
    fine = ok & (half < 1) & (1 - 2 * half + det > 0)
    inverse = np.linalg.inv(np.where(fine[..., None, None], np.eye(2) - loop, np.eye(2)))
    transpose = lambda matrix: np.swapaxes(matrix, -1, -2)
    keep = lambda new, old: np.where(fine[..., None, None], new, old)
    A = second.A @ inverse @ first.A
    G = second.G + second.A @ inverse @ first.G @ transpose(second.A)
    H = first.H + transpose(first.A) @ second.H @ inverse @ first.A
    return Stage(keep(A, first.A), keep(G, first.G), keep(H, first.H)), fine


def _outer(a, b) -> np.ndarray:
    return _matrix(a * a, a * b, a * b, b * b)


def _matrix(a, b, c, d) -> np.ndarray:
    return np.stack([np.stack([a, b], axis=-1), np.stack([c, d], axis=-1)], axis=-2)
