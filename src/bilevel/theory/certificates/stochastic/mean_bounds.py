"""Mean bounds for given step sizes, from an error system of AID and SOBA in mean squares.

Arrays have one entry per step; for schedules that is the first axis, and further axes are schedules. For a random
vector write |·| = (E‖·‖²)^½. Split ŷ − y* = p + n and v̂ − v* = q + m linearly. One part is driven by the
movement of x and by the start, Z = (|p|, |q|) before an update. The other part, (n, m), is a martingale:

    Z_{k+1} ≤ P_k Z_k + β_k (s, V)(|h_k| + σ_C B_k) + bias_k,      e_k ≤ o_k·Z_k + ν_k,      B_k ≤ o'_k·Z_k + ν'_k,

B_k = |v̂ − v*|; the noise of the cross product is a multiple of it. Proofs: documentation, "Minibatches".

Constant sizes have a closed form, schedules a recursion. Both convert a part of the price ‖h‖² into ‖∇Φ‖² itself,
as `storage.lowest_mean` does. This gains a factor of up to two where the noise is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bilevel.theory.certificates.gain import free_response
from bilevel.theory.certificates.stochastic.noise import Noise
from bilevel.theory.constants import Blocks

Numbers = Any  # arrays of float64, or numbers that broadcast against them

# Shares of the surplus in ‖h‖² (below 1, as a margin for rounding), and the smallest Young parameter s.
TRIED = np.array([(0, 1), (0.5, 1e-3), (0.999, 1e-3), (0.5, 0.1), (0.9, 0.1), (0.5, 0.5), (0.9, 0.5)])


@dataclass(frozen=True)
class Method:
    """Constants of the problem, and the order and the draws of a step."""

    blocks: Blocks
    noise: Noise
    y_bend: float  # Lipschitz constant of the Jacobian of y*(x)
    v_bend: float  # and of v*(x); infinite if it is not assumed
    sequential: bool  # AID: v waits for ŷ, and x for both. SOBA: all at the old point
    shared: bool  # one draw for all directions of a step (only SOBA)

    @property
    def adjoint_noise(self) -> float:
        """Return the noise of ∇²_yy g·v* − ∇_y f, where ‖v*‖ ≤ M_y/μ."""
        return float(np.hypot(self.noise.adjoint, self.noise.hessian * self.blocks.M_y / self.blocks.mu))

    @property
    def outer_noise(self) -> float:
        """Return the noise of ∇_x f − ∇²_xy g·v*."""
        return float(np.hypot(self.noise.outer, self.noise.cross * self.blocks.M_y / self.blocks.mu))


@dataclass(frozen=True)
class Tracking:
    """Recursion by which y and v follow their targets with these step sizes; entries broadcast."""

    method: Method
    alpha: Numbers
    eta: Numbers
    beta: Numbers

    def contraction(self, step: Numbers) -> tuple[Numbers, Numbers]:
        """Return (r, r̄): the norms of I − step·H, and in mean square of I − step·H_B; r̄² = r² + step²σ_H²."""
        k = self.method.blocks
        r = np.maximum(np.abs(1 - step * k.mu), np.abs(1 - step * k.L_yy))
        return r, np.hypot(r, step * self.method.noise.hessian)

    @property
    def P(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return (P₁₁, P₂₁, P₂₂); the inner error enters v after its update in AID, before it in SOBA."""
        _, r = self.contraction(self.alpha)
        _, t = self.contraction(self.eta)
        return r, self.eta * self.method.blocks.Lambda_yy * (r if self.method.sequential else 1.0), t

    @property
    def v_row(self) -> tuple[Numbers, Numbers]:
        """Return o', the row from Z to |v̂ − v*| at the outer direction."""
        _, coupling, t = self.P
        return (coupling, t) if self.method.sequential else (0 * coupling, 1 + 0 * t)

    @property
    def e_row(self) -> tuple[Numbers, Numbers]:
        """Return o, the row from Z to Λ_xy|ŷ − y*| + L_xy|v̂ − v*| at the outer direction."""
        k, (r, _, _), (row_a, row_b) = self.method.blocks, self.P, self.v_row
        a = r if self.method.sequential else 1.0
        return k.Lambda_xy * a + k.L_xy * row_a, k.L_xy * row_b

    def drift(self, slope: Numbers, bend: float, step: Numbers) -> tuple[Numbers, Numbers]:
        """Return (mean, deviation) of the movement of a target with Lipschitz constant `slope`, by x's noise ω.

        If the target's Jacobian J is Lipschitz, the part −β·J·ω has mean zero, and the remainder is at most
        ½·bend·β²σ². Otherwise, or where that bound is larger, the whole movement counts as mean.
        """
        sigma, (r, _) = self.method.outer_noise, self.contraction(step)
        all_of_it = slope * self.beta * sigma
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = 0.5 * bend * (self.beta * sigma) ** 2
            mean = np.full_like(all_of_it, np.inf) if np.isinf(bend) else mean
            split = mean / (1 - r) + all_of_it / np.sqrt(1 - r * r) <= all_of_it / (1 - r)
        return np.where(split, mean, all_of_it), np.where(split, all_of_it, 0.0)

    @property
    def drifts(self) -> tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
        """Return the `drift` of y* and of v*."""
        k, m = self.method.blocks, self.method
        return self.drift(k.y_slope, m.y_bend, self.alpha), self.drift(k.v_slope, m.v_bend, self.eta)

    @property
    def certified(self) -> Any:
        """Return whether both updates contract in mean square, and β ≤ 1/L_Φ."""
        r, _, t = self.P
        return (r < 1) & (t < 1) & (self.beta * self.method.blocks.L_Phi <= 1)


class Conversion(NamedTuple):
    """Bounds ω‖h‖² ≥ ω(g²/(1 + s) − e²/s) for every ω and s. The first axis follows `TRIED`, from ω = 0."""

    omega: Numbers
    weight: Numbers  # of e², 1 + ω/s
    share: Numbers  # of g², 1 + ω/(1 + s)

    @classmethod
    def of(cls, T: Numbers, room: Numbers) -> Conversion:
        """Return the conversions for the gain T, where 1 − c exceeds the cost of errors by `room`."""
        along = lambda column: column.reshape((-1,) + (1,) * np.ndim(T))
        s = np.maximum(T, along(TRIED[:, 1]))
        omega = along(TRIED[:, 0]) * np.maximum(room, 0) / (1 + T**2 / s)
        omega = np.where(np.isfinite(omega), omega, 0.0)
        return cls(omega, 1 + omega / s, 1 + omega / (1 + s))


def unit_gain(at: Tracking) -> Numbers:
    """Return u, the response of e to a constant movement ‖x_{k+1} − x_k‖ = 1, without multiplicative noise."""
    k, (r, coupling, t), row = at.method.blocks, at.P, at.e_row
    with np.errstate(divide="ignore", invalid="ignore"):
        a = k.y_slope / (1 - r)
        b = (k.v_slope + coupling * a) / (1 - t)
        return row[0] * a + row[1] * b


def mean_bound(at: Tracking, steps: Numbers, gap: Numbers, y_error: Numbers, v_error: Numbers) -> Numbers:
    """Return the bound on (1/K) Σ_{k<K} E‖∇Φ(x_k)‖²; infinite where the step sizes are not certified."""
    m, k, beta = at.method, at.method.blocks, at.beta
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        nu_v, nu_e = stationary(at)
        (bias_y, _), (bias_v, _) = at.drifts
        s, V, sigma_C = k.y_slope, k.v_slope, m.noise.cross
        e_row, v_row = at.e_row, at.v_row

        # I − P', where P' = P + βσ_C·(s, V)ᵀo' closes the loop through the noise of the cross product.
        r, coupling, t = at.P
        loop = beta * sigma_C
        p = 1 - r - loop * s * v_row[0], -loop * s * v_row[1]
        q = -coupling - loop * V * v_row[0], 1 - t - loop * V * v_row[1]
        det = p[0] * q[1] - p[1] * q[0]
        stable = at.certified & (p[0] > 0) & (q[1] > 0) & (det > 0)
        response = lambda a, b: ((q[1] * a - p[1] * b) / det, (p[0] * b - q[0] * a) / det)
        read = lambda row, z: row[0] * z[0] + row[1] * z[1]

        moved = response(beta * s, beta * V)  # to a constant ‖h‖ = 1
        T, T_omega = read(e_row, moved), sigma_C * read(v_row, moved)
        rest = response(loop * s * nu_v + bias_y, loop * V * nu_v + bias_v)  # to the mean of the noise
        nu, omega = nu_e + read(e_row, rest), m.outer_noise + sigma_C * (nu_v + read(v_row, rest))

        P = ((1 - p[0], -p[1]), (-q[0], 1 - q[1]))
        J = free_response(P, e_row, y_error, v_error, stable) / np.sqrt(steps) + nu
        W = sigma_C * free_response(P, v_row, y_error, v_error, stable) / np.sqrt(steps) + omega

        c = beta * k.L_Phi
        converted = Conversion.of(T, 1 - c - T**2 - c * T_omega**2)
        weight, price = converted.weight, 1 - c - converted.omega
        room = price - weight * T**2 - c * T_omega**2
        # In units of √K. sup over N of weight·(TN + J)² + c(T_ω N + W)² − price·N².
        gained = weight * J**2 + c * W**2 + (weight * T * J + c * T_omega * W) ** 2 / room
        mean = (2 * gap / (beta * steps) + gained) / converted.share
        return np.min(np.where(stable & (room > 0) & ~np.isnan(mean), mean, np.inf), axis=0)


def stationary(at: Tracking) -> tuple[Numbers, Numbers]:
    """Return the limits (ν', ν) to which the noise in v (with the part from n) and in e grows from zero."""
    m, k = at.method, at.method.blocks
    (_, away_y), (_, away_v) = at.drifts
    nu_y = level(at, at.alpha, m.noise.inner, away_y)
    nu_v = level(at, at.eta, m.adjoint_noise, away_v)
    _, t = at.contraction(at.eta)
    nu_v = nu_v + at.eta * k.Lambda_yy * nu_y / (1 - t)
    return nu_v, k.Lambda_xy * nu_y + k.L_xy * nu_v


def level(at: Tracking, step: Numbers, sigma: float, away: Numbers) -> Numbers:
    """Return the root U of U² = r²U² + step²(σ + σ_H U)² + away².

    U is read after the update in AID and before it in SOBA. With one draw for all directions, step·(σ + σ_H
    U) and `away` are added before they are squared.
    """
    m, (_, r) = at.method, at.contraction(step)
    one, per_U = step * sigma, step * m.noise.hessian
    if m.shared:
        half, rest = per_U * (one + away), (one + away) ** 2
    else:
        half, rest = per_U * one, one**2 + away**2
    shrink = 1 - r * r
    U = (half + np.sqrt(half**2 + shrink * rest)) / shrink
    return np.sqrt(np.maximum(U**2 - away**2, 0)) if m.sequential else U


NO_CONVERSION = Conversion(0.0, 1.0, 1.0)


def best_weighted_bound(at: Tracking, gap: float, y_error: float, v_error: float) -> float:
    """Return the lowest `weighted_bound` of one schedule over the conversions of ‖h‖² into ‖∇Φ‖²."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        T = np.max(at.beta * unit_gain(at))
        tried = Conversion.of(T, 1 - np.max(at.beta) * at.method.blocks.L_Phi - T**2)
    bounds = [
        weighted_bound(at, gap, y_error, v_error, Conversion(*each)) for each in zip(*tried, strict=True)
    ]
    return float(np.min(np.where(np.isnan(bounds), np.inf, bounds)))


@np.errstate(over="ignore", invalid="ignore")
def weighted_bound(
    at: Tracking, gap: float, y_error: float, v_error: float, converted: Conversion = NO_CONVERSION
) -> Numbers:
    """Return the bound on Σ_k β_k E‖∇Φ(x_k)‖² / Σ_k β_k; infinite where the step sizes are not certified.

    It is the exact sup over N of Σ_k β_k e_k² + L_Φβ_k²|ω_k|² − β_k(1 − L_Φβ_k)N_k² for the system with input
    N_k = |h_k|: a quadratic form in (Z_0, 1), from the last step backwards.
    """
    m, k, beta = at.method, at.method.blocks, at.beta
    nu_v, nu_e = noise(at)
    (bias_y, _), (bias_v, _) = at.drifts
    (r, coupling, t), e_row, v_row = at.P, at.e_row, at.v_row
    sigma_C, s, V = m.noise.cross, k.y_slope, k.v_slope

    zero, one = np.zeros_like(beta), np.ones_like(beta)
    matrix = lambda rows: np.stack([np.stack(np.broadcast_arrays(*row), -1) for row in rows], -2)
    loop = matrix([[sigma_C * v_row[0], sigma_C * v_row[1], sigma_C * nu_v]])
    input = matrix([[beta * s], [beta * V], [zero]])
    A = matrix([[r, zero, bias_y], [coupling, t, bias_v], [zero, zero, one]]) + input @ loop
    e = matrix([[*e_row, nu_e]])
    omega = matrix([[zero, zero, m.outer_noise + zero]]) + loop
    turn = lambda a: np.swapaxes(a, -1, -2)
    scale = beta[..., None, None]
    stage = converted.weight * scale * turn(e) @ e + k.L_Phi * scale**2 * turn(omega) @ omega
    price = beta * (1 - k.L_Phi * beta - converted.omega)

    fine = np.all(at.certified, axis=0)
    X = np.zeros((*fine.shape, 3, 3))
    for i in reversed(range(len(beta))):
        into = X @ input[i]
        room = price[i] - (turn(input[i]) @ into)[..., 0, 0]
        fine = fine & (room > 0)
        from_input = turn(A[i]) @ into
        gained = from_input @ turn(from_input) / np.where(room > 0, room, 1.0)[..., None, None]
        X = np.where(fine[..., None, None], stage[i] + turn(A[i]) @ X @ A[i] + gained, 0.0)
    start = np.array([y_error, v_error, 1.0])
    bound = (2 * gap + start @ X @ start) / beta.sum(0) / converted.share
    return np.where(fine & ~np.isnan(bound), bound, np.inf)


def noise(at: Tracking) -> tuple[Numbers, Numbers]:
    """Return (ν'_k, ν_k), the martingale parts of |v̂_k − v*_k| and e_k at the outer direction of step k."""
    m, k = at.method, at.method.blocks
    (_, away_y), (_, away_v) = at.drifts
    n = own_noise(at, at.alpha, m.noise.inner, away_y)
    own = own_noise(at, at.eta, m.adjoint_noise, away_v)
    _, t = at.contraction(at.eta)
    price = at.eta * k.Lambda_yy
    carried, level = np.empty_like(n), np.zeros(n.shape[1:])
    for i in range(len(n)):
        if m.sequential:
            carried[i] = level = t[i] * level + price[i] * n[i]
        else:
            carried[i], level = level, t[i] * level + price[i] * n[i]
    return own + carried, k.Lambda_xy * n + k.L_xy * (own + carried)


def own_noise(at: Tracking, step: Numbers, sigma: float, away: Numbers) -> Numbers:
    """Return |n_k| (or |m_k|), by U² ← r²U² + step²(σ + σ_H U)² + away² from zero, as for `level`."""
    m, (r, _) = at.method, at.contraction(step)
    r, away = np.broadcast_to(r, at.beta.shape), np.broadcast_to(away, at.beta.shape)
    read, U = np.empty(at.beta.shape), np.zeros(at.beta.shape[1:])
    for i in range(len(read)):
        fresh = step[i] * (sigma + m.noise.hessian * U)
        updated = np.hypot(r[i] * U, fresh)
        read[i] = updated if m.sequential else U
        U = np.hypot(r[i] * U, fresh + away[i]) if m.shared else np.hypot(updated, away[i])
    return read
