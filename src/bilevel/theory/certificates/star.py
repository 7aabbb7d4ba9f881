"""The κ⁴ certificates: errors measured at the solutions y* and v*, and driven by the step itself.

Two things cost the paper's analysis, and `tight`, a factor κ and more (documentation, "κ⁴"):

* v̂ was compared with ṽ* = (∇²_yy g)⁻¹∇_y f at ŷ, which moves with ŷ and charges every inner error 1/μ. At y* the target
  v* stays, and the inner error enters once per step, with weight η;
* the step was bounded by ‖∇Φ‖ + e, which closes a loop, and −‖h‖² was dropped from the descent lemma. Kept, it pays
  for everything that the step ‖h‖ itself causes (`storage`).
"""

from __future__ import annotations

import numpy as np

from bilevel.checks import check_count
from bilevel.theory.blocks import Blocks
from bilevel.theory.certificates.certificate import Errors
from bilevel.theory.certificates.from_system import SystemCertificate
from bilevel.theory.certificates.storage import Driven
from bilevel.theory.constants import Constants
from bilevel.theory.reals import Floats, Real, positive


def aid(
    constants: Constants | Blocks,
    alpha: Real | None = None,
    eta: Real | None = None,
    inner_steps: int = 1,
    adjoint_steps: int = 1,
) -> SystemCertificate:
    """AID, with N inner and Q adjoint steps. For a_k = ‖ŷ_k − y*_k‖, b_k = ‖v̂_k − v*_k‖, d_k = ‖x_k − x_{k−1}‖:

    a_k ≤ r(a_{k−1} + s·d_k),  b_k ≤ t(b_{k−1} + V·d_k) + ηₜΛ_yy·a_k,  e_k ≤ Λ_xy·a_k + L_xy·b_k,

    r = (1 − αμ)^N, t = (1 − ημ)^Q, ηₜ = (1 − t)/μ, s and V the slopes of y* and v* (`Blocks`). For N = Q = 1, the paper's
    constants and α = η = 1/L the gain of d on e is 2λκ(κ² − 1), half of that with the default α = η = 2/(L_yy + μ).
    """
    k = Blocks.of(constants)
    N, Q = check_count(inner_steps, "inner_steps"), check_count(adjoint_steps, "adjoint_steps")
    alpha, r = _contraction(k, alpha, "alpha", N)
    eta, t = _contraction(k, eta, "eta", Q)
    force = _accumulated(eta, t, Q) * k.Lambda_yy
    weight, c0 = _scale(k)

    def start(y_error: Floats, v_error: Floats | None) -> Errors:
        a = r * y_error
        return a, t * (k.M_y / k.mu if v_error is None else v_error) + force * a

    system = Driven(
        r0=r,
        r1=t,
        p=_ratio(k.L_xy * force * r, weight),
        q0=weight * r * k.y_slope,
        q1=k.L_xy * (t * k.v_slope + force * r * k.y_slope),
        C5=0.0,
        beta_cap=_cap(k),
        c0=c0,
    )
    return _certificate("AID", constants, alpha, eta, system, (weight, k.L_xy), start, N, Q)


def soba(
    constants: Constants | Blocks, alpha: Real | None = None, eta: Real | None = None
) -> SystemCertificate:
    """SOBA, which takes all directions at the old point, so nothing contracts a step of x at once:

    a_k ≤ r·a_{k−1} + s·d_k,  b_k ≤ t·b_{k−1} + ηΛ_yy·a_{k−1} + V·d_k,  e_k ≤ Λ_xy·a_k + L_xy·b_k.

    The gain is 2λκ²(κ + 1) for the paper's constants and α = η = 1/L, half of κ(κ + 1)²λ·… smaller with the default.
    """
    k = Blocks.of(constants)
    alpha, r = _contraction(k, alpha, "alpha")
    eta, t = _contraction(k, eta, "eta")
    weight, c0 = _scale(k)
    system = Driven(
        r0=r,
        r1=t,
        p=_ratio(k.L_xy * eta * k.Lambda_yy, weight),
        q0=weight * k.y_slope,
        q1=k.L_xy * k.v_slope,
        C5=0.0,
        beta_cap=_cap(k),
        c0=c0,
    )
    start = lambda y_error, v_error: (y_error, k.M_y / k.mu if v_error is None else v_error)
    return _certificate("SOBA", constants, alpha, eta, system, (weight, k.L_xy), start)


def itd(constants: Constants | Blocks, alpha: Real | None = None) -> SystemCertificate:
    """ITD in the warm-start error s_k = ‖y_k⁰ − y*_k‖, as in `tight.itd` and with blocks:

    s_k ≤ r·s_{k−1} + (L_xy/μ)d_k,  e_k ≤ (r(f_xy + αL_xy·f_yy) + α·rho_xyy·M_y)s_k + C₅,  C₅ = M_y(1 − αμ)L_xy/μ.

    The excess of the bound over C₅² decays like K^(−2/3). With the default α = 2/(L_yy + μ) the inherent error C₅² is
    M²κ²((κ − 1)/(κ + 1))² for the paper's constants, a quarter of M²(κ − 1)² when κ is large.
    """
    k = Blocks.of(constants)
    alpha, r = _contraction(k, alpha, "alpha")
    weight = r * (k.f_xy + alpha * k.L_xy * k.f_yy) + alpha * k.rho_xyy * k.M_y
    miss = np.maximum(1 / k.mu - alpha, alpha - 1 / k.L_yy)  # ‖αI − (∇²_yy g)⁻¹‖
    system = Driven(
        r0=r,
        r1=0.0,
        p=0.0,
        q0=weight * k.y_slope,
        q1=0.0,
        C5=k.L_xy * k.M_y * miss,
        beta_cap=_cap(k),
    )
    return _certificate("ITD", constants, alpha, None, system, (weight, 0.0), lambda y, v: (y, 0.0))


def _certificate(method, constants, alpha, eta, system, weights, start, N=1, Q=1) -> SystemCertificate:
    with np.errstate(divide="ignore"):
        limits = {"smoothness": system.beta_cap, "error feedback": (1 / np.asarray(system.unit_gain))[()]}
    return SystemCertificate("star", method, constants, alpha, eta, limits, system, weights, start, N, Q)


def _contraction(k: Blocks, step: Real | None, name: str, times: int = 1) -> tuple[Floats, Floats]:
    """The step size, 2/(L_yy + μ) by default, and by what `times` such steps on y (or v) contract."""
    step = 2 / (k.L_yy + k.mu) if step is None else positive(step, name, "it is a step size")
    rate = np.maximum(np.abs(1 - step * k.mu), np.abs(step * k.L_yy - 1))
    if np.any(rate >= 1):
        raise ValueError(
            f"{name} = {np.max(step):g} does not contract: it must be below 2/L_yy = {np.min(2 / k.L_yy):g}"
        )
    return step, rate**times


def _accumulated(step: Floats, rate: Floats, times: int) -> Floats:
    """‖Σ_{j<Q} (I − ηH)ʲη‖ ≤ η(1 − t)/(1 − t^(1/Q)), which is (1 − t)/μ for η ≤ 2/(L_yy + μ)."""
    return step * sum(rate ** (j / times) for j in range(times)) if times < 8 else step * (1 - rate) / (1 - rate ** (1 / times))


def _scale(k: Blocks) -> tuple[Floats, Floats]:
    """A weight for the inner error that is positive even where Λ_xy is zero, and its part in the error."""
    weight = np.asarray(k.Lambda_xy + k.Lambda_yy * k.y_slope)[()]
    return weight, _ratio(k.Lambda_xy, weight)


def _ratio(a: Floats, b: Floats) -> Floats:
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b))), where=np.asarray(b) > 0)[()]


def _cap(k: Blocks) -> Floats:
    with np.errstate(divide="ignore"):
        return (1 / np.asarray(k.L_Phi))[()]
