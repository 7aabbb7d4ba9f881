"""The bound for step sizes that change: noise by a forward recursion, the worst movement of x by a backward one.

The first axis of every array goes over steps; further ones over schedules that are compared.
"""

from __future__ import annotations

import numpy as np

from bilevel.theory.certificates.stochastic.constant import unit_gain
from bilevel.theory.certificates.stochastic.tracking import Numbers, Tracking
from bilevel.theory.certificates.stochastic.turned import Turned

NOTHING = Turned(0.0, 1.0, 1.0)


def best_weighted_bound(at: Tracking, gap: float, y_error: float, v_error: float) -> float:
    """The lowest `weighted_bound` of one schedule over the ways to turn a part of ‖h‖² into ‖∇Φ‖²."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        T = np.max(at.beta * unit_gain(at))
        turned = Turned.of(T, 1 - np.max(at.beta) * at.method.blocks.L_Phi - T**2)
    bounds = [weighted_bound(at, gap, y_error, v_error, Turned(*each)) for each in zip(*turned, strict=True)]
    return float(np.min(np.where(np.isnan(bounds), np.inf, bounds)))


def weighted_bound(
    at: Tracking, gap: float, y_error: float, v_error: float, turned: Turned = NOTHING
) -> Numbers:
    """Bound on Σ_k β_k E‖∇Φ(x_k)‖² / Σ_k β_k; infinite where the step sizes are not certified.

    sup over N of Σ_k β_k e_k² + L_Φβ_k²|ω_k|² − β_k(1 − L_Φβ_k)N_k² for the system with input N_k = |h_k|: a
    quadratic form in (Z_0, 1), from the last step backwards. Nothing is lost between the system and this number.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _weighted(at, gap, y_error, v_error, turned)


def _weighted(at: Tracking, gap: float, y_error: float, v_error: float, turned: Turned) -> Numbers:
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
    stage = turned.weight * scale * turn(e) @ e + k.L_Phi * scale**2 * turn(omega) @ omega
    price = beta * (1 - k.L_Phi * beta - turned.omega)

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
    bound = (2 * gap + start @ X @ start) / beta.sum(0) / turned.share
    return np.where(fine & ~np.isnan(bound), bound, np.inf)


def noise(at: Tracking) -> tuple[Numbers, Numbers]:
    """(ν'_k, ν_k): the martingale parts of |v̂_k − v*_k| and of e_k, where the outer direction of step k is taken."""
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
    """|n_k| (or |m_k|): U² ← r²U² + step²(σ + σ_H U)² + away², as in `constant.level`, from zero."""
    m, (r, _) = at.method, at.contraction(step)
    r, away = np.broadcast_to(r, at.beta.shape), np.broadcast_to(away, at.beta.shape)
    read, U = np.empty(at.beta.shape), np.zeros(at.beta.shape[1:])
    for i in range(len(read)):
        fresh = step[i] * (sigma + m.noise.hessian * U)
        updated = np.hypot(r[i] * U, fresh)
        read[i] = updated if m.sequential else U
        U = np.hypot(r[i] * U, fresh + away[i]) if m.shared else np.hypot(updated, away[i])
    return read
