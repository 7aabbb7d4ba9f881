"""The bound for constant step sizes, in closed form: gains, stationary noise, one quadratic inequality."""

from __future__ import annotations

import numpy as np

from bilevel.theory.certificates.gain import free_response
from bilevel.theory.certificates.stochastic.tracking import Numbers, Tracking
from bilevel.theory.certificates.stochastic.turned import Turned


def unit_gain(at: Tracking) -> Numbers:
    """u: the response of e to a constant movement ‖x_{k+1} − x_k‖ = 1, without noise that multiplies."""
    k, (r, coupling, t), row = at.method.blocks, at.P, at.e_row
    with np.errstate(divide="ignore", invalid="ignore"):
        a = k.y_slope / (1 - r)
        b = (k.v_slope + coupling * a) / (1 - t)
        return row[0] * a + row[1] * b


def mean_bound(at: Tracking, steps: Numbers, gap: Numbers, y_error: Numbers, v_error: Numbers) -> Numbers:
    """Bound on (1/K) Σ_{k<K} E‖∇Φ(x_k)‖²; infinite where the step sizes are not certified."""
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
        turned = Turned.of(T, 1 - c - T**2 - c * T_omega**2)
        weight, price = turned.weight, 1 - c - turned.omega
        room = price - weight * T**2 - c * T_omega**2
        # In units of √K. sup over N of weight·(TN + J)² + c(T_ω N + W)² − price·N².
        gained = weight * J**2 + c * W**2 + (weight * T * J + c * T_omega * W) ** 2 / room
        mean = (2 * gap / (beta * steps) + gained) / turned.share
        return np.min(np.where(stable & (room > 0) & ~np.isnan(mean), mean, np.inf), axis=0)


def stationary(at: Tracking) -> tuple[Numbers, Numbers]:
    """(ν', ν): limits of the noise in v, its own and what n leaves there, and in e, where the outer direction is taken.

    They grow to these limits from zero, so the limits bound every step.
    """
    m, k = at.method, at.method.blocks
    (_, away_y), (_, away_v) = at.drifts
    nu_y = level(at, at.alpha, m.noise.inner, away_y)
    nu_v = level(at, at.eta, m.adjoint_noise, away_v)
    _, t = at.contraction(at.eta)
    nu_v = nu_v + at.eta * k.Lambda_yy * nu_y / (1 - t)
    return nu_v, k.Lambda_xy * nu_y + k.L_xy * nu_v


def level(at: Tracking, step: Numbers, sigma: float, away: Numbers) -> Numbers:
    """The root U of U² = r²U² + step²(σ + σ_H U)² + away², read after the update in AID and before it in SOBA.

    With one draw for all, step·(σ + σ_H U) and `away` are added before they are squared.
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
