"""Certificates of order κ⁴: errors are measured at the solutions y* and v*, and driven by the step itself.

Two choices cost the paper's analysis, and `tight`, a factor κ and more (documentation, "κ⁴"):

* they compare v̂ with ṽ* = (∇²_yy g)⁻¹∇_y f at ŷ, which moves with ŷ and charges every inner error 1/μ. Here
  the target v* is taken at y*, and the inner error enters once per step, with weight η;
* they bound the step by ‖∇Φ‖ + e, which closes a loop, and drop −‖h‖² from the descent lemma. Here it stays,
  and pays for everything that the step ‖h‖ causes (`storage`).
"""

from dataclasses import dataclass

import numpy as np

from bilevel.checks import check_count
from bilevel.theory.certificates.certificate import GAP, Errors, inverse, quotient
from bilevel.theory.certificates.gain import InitialErrors, SystemCertificate
from bilevel.theory.certificates.storage import Driven
from bilevel.theory.constants import Blocks, Constants
from bilevel.theory.reals import Floats, Real, check_kappa, check_shapes, positive, step_count

MOST_STEPS = 10**15


@dataclass(frozen=True)
class StarCertificate(SystemCertificate):
    """Tracking certificate, with bounds on the mean of ‖∇Φ‖² and on the last value of Φ."""

    system: Driven

    def linear_beta(self, modulus: Real) -> Floats:
        """Return the largest β for which Φ − inf Φ falls by 1 − βm per step, if ‖∇Φ‖² ≥ 2m(Φ − inf Φ)."""
        return self.system.linear_beta(self._modulus(modulus))

    def last_value(
        self,
        steps: Real,
        gap: Real,
        modulus: Real,
        y_error: Real = 0.0,
        v_error: Real | None = None,
        beta: Real | None = None,
    ) -> Floats:
        """Return a bound on Φ(x_K) − inf Φ, for Φ with the Polyak–Łojasiewicz modulus m.

        β is `linear_beta` by default. The bound is (1 − βm)ᴷ·gap; an inexact start adds to the gap.
        """
        modulus, steps, gap = self._modulus(modulus), step_count(steps), positive(gap, "gap", GAP)
        beta = None if beta is None else positive(beta, "beta")
        states = self._states(self._start(y_error, v_error))
        given = {"steps": steps, "gap": gap, "modulus": modulus, "beta": beta}
        check_shapes(**given, start=states[0] + states[1], constants=self.beta_max)
        at = self.linear_beta(modulus) if beta is None else beta
        return self.system.last(at, steps, gap, modulus, *states)

    def _modulus(self, modulus: Real) -> Floats:
        if self.method == "ITD":
            raise ValueError(
                "ITD does not converge to a stationary point, so its last value has no linear rate"
            )
        modulus = positive(modulus, "modulus", "it is the m of ‖∇Φ‖² ≥ 2m(Φ − inf Φ)")
        check_shapes(modulus=modulus, constants=self.system.beta_cap)
        with np.errstate(over="ignore"):
            share = np.max(modulus * self.system.beta_cap, initial=0.0)
        if share > 1 + 1e-9:
            raise ValueError(
                f"modulus is {share:g} times L_Φ, the largest curvature of Φ: it can be at most that"
            )
        return modulus


def aid(
    constants: Constants | Blocks,
    alpha: Real | None = None,
    eta: Real | None = None,
    inner_steps: int = 1,
    adjoint_steps: int = 1,
) -> StarCertificate:
    """Return the certificate of AID with N inner and Q adjoint steps.

    For a_k = ‖ŷ_k − y*_k‖, b_k = ‖v̂_k − v*_k‖, d_k = ‖x_k − x_{k−1}‖:

    a_k ≤ r(a_{k−1} + s·d_k),  b_k ≤ t(b_{k−1} + V·d_k) + ηₜΛ_yy·a_k,  e_k ≤ Λ_xy·a_k + L_xy·b_k,

    r = (1 − αμ)ᴺ, t = (1 − ημ)^Q, ηₜ = (1 − t)/μ, s and V the slopes of y* and v* (`Blocks`). (Steps beyond
    2/(L_yy + μ), up to 2/L_yy, contract by αL_yy − 1 instead of 1 − αμ.) For N = Q = 1, the paper's constants
    and α = η = 1/L the gain of d on e is 2λκ(κ² − 1), and half of that with the default α = η = 2/(L_yy + μ).
    """
    k = Blocks.of(constants)
    N = check_count(inner_steps, "inner_steps", most=MOST_STEPS)
    Q = check_count(adjoint_steps, "adjoint_steps", most=MOST_STEPS)
    (alpha, inner), (eta, adjoint) = contraction(k, alpha, "alpha"), contraction(k, eta, "eta")
    r, t = inner**N, adjoint**Q
    # ‖Σ_{j<Q} η(I − ηH)ʲ‖: terms with ηh > 1 alternate, and sum to at most η.
    with np.errstate(divide="ignore"):
        slowest = -np.expm1(Q * np.log(np.maximum(1 - eta * k.mu, 0.0))) / k.mu
    system, weights, start = tracking(k, r, t, np.maximum(eta, slowest))
    return _certificate("AID", constants, alpha, eta, system, weights, start, N, Q)


def tracking(k: Blocks, r: Floats, t: Floats, eta_t: Floats) -> tuple[Driven, Errors, InitialErrors]:
    """Return AID's error system with contractions r (inner) and t (adjoint), its weights and the start."""
    weight, c0 = _scale(k)
    force = eta_t * k.Lambda_yy

    def start(y_error: Floats, v_error: Floats | None) -> Errors:
        a = r * y_error
        return a, t * (k.M_y / k.mu if v_error is None else v_error) + force * a

    system = Driven(
        r0=r,
        r1=t,
        p=quotient(k.L_xy * force * r, weight),
        q0=weight * r * k.y_slope,
        q1=k.L_xy * (t * k.v_slope + force * r * k.y_slope),
        beta_cap=inverse(k.L_Phi),
        c0=c0,
    )
    return system, (weight, k.L_xy), start


def soba(
    constants: Constants | Blocks, alpha: Real | None = None, eta: Real | None = None
) -> StarCertificate:
    """Return the certificate of SOBA, which takes all directions at the old point:

    a_k ≤ r·a_{k−1} + s·d_k,  b_k ≤ t·b_{k−1} + ηΛ_yy·a_{k−1} + V·d_k,  e_k ≤ Λ_xy·a_k + L_xy·b_k.

    For the paper's constants the gain is 2λκ²(κ + 1) with α = η = 1/L, and λκ(κ + 1)² with the default
    2/(L_yy + μ).
    """
    k = Blocks.of(constants)
    (alpha, r), (eta, t) = contraction(k, alpha, "alpha"), contraction(k, eta, "eta")
    weight, c0 = _scale(k)
    system = Driven(
        r0=r,
        r1=t,
        p=quotient(k.L_xy * eta * k.Lambda_yy, weight),
        q0=weight * k.y_slope,
        q1=k.L_xy * k.v_slope,
        beta_cap=inverse(k.L_Phi),
        c0=c0,
    )
    start = lambda y_error, v_error: (y_error, k.M_y / k.mu if v_error is None else v_error)
    return _certificate("SOBA", constants, alpha, eta, system, (weight, k.L_xy), start)


def itd(constants: Constants | Blocks, alpha: Real | None = None) -> StarCertificate:
    """Return the certificate of ITD in the warm-start error s_k = ‖y_k⁰ − y*_k‖; `tight.itd` with blocks:

    s_k ≤ r·s_{k−1} + (L_xy/μ)d_k,  e_k ≤ (r(f_xy + αL_xy·f_yy) + α·rho_xyy·M_y)s_k + C₅,  C₅ = M_y(1 −
    αμ)L_xy/μ (M_yL_xy(α − 1/L_yy) where that is more, for an α well beyond 2/(L_yy + μ)).

    The excess of the bound over C₅² decays like K^(−2/3). With the default α = 2/(L_yy + μ) the inherent
    error C₅² is M²κ²((κ − 1)/(κ + 1))² for the paper's constants, where α = 1/L has M²(κ − 1)².
    """
    k = Blocks.of(constants)
    alpha, r = contraction(k, alpha, "alpha")
    weight = r * (k.f_xy + alpha * k.L_xy * k.f_yy) + alpha * k.rho_xyy * k.M_y
    miss = np.maximum(1 / k.mu - alpha, alpha - 1 / k.L_yy)  # ‖αI − (∇²_yy g)⁻¹‖
    C5 = k.L_xy * k.M_y * miss
    system = Driven(r0=r, q0=weight * k.y_slope, C5=C5, beta_cap=inverse(k.L_Phi))
    return _certificate("ITD", constants, alpha, None, system, (weight, 0.0), lambda y, v: (y, 0.0))


def contraction(k: Blocks, step: Real | None, name: str) -> tuple[Floats, Floats]:
    """Return the step size, 2/(L_yy + μ) by default, and the contraction factor of a step on y (or v)."""
    check_kappa(k.kappa)
    step = 2 / (k.L_yy + k.mu) if step is None else positive(step, name)
    check_shapes(**{name: step, "constants": np.asarray(k.kappa)})
    with np.errstate(over="ignore"):
        rate = np.maximum(np.abs(1 - step * k.mu), np.abs(step * k.L_yy - 1))
    if np.any(1 - rate < 1e-15):
        worst = np.broadcast_to(step, np.shape(rate)).flat[np.argmax(rate)]
        raise ValueError(
            f"{name} = {worst:g} does not contract: it must be below 2/L_yy = {np.min(2 / k.L_yy):g}, and "
            "not so small that float64 cannot tell the step from none"
        )
    return step, rate


def _certificate(method, constants, alpha, eta, system, weights, start, N=1, Q=1) -> StarCertificate:
    limits = {"smoothness": system.beta_cap, "error feedback": inverse(system.unit_gain)}
    return StarCertificate("star", method, constants, alpha, eta, limits, system, weights, start, N, Q)


def _scale(k: Blocks) -> tuple[Floats, Floats]:
    """Return a positive weight for the inner error, even where Λ_xy is zero, and its share in the error."""
    weight = np.asarray(k.Lambda_xy + k.Lambda_yy * k.y_slope)[()]
    return weight, quotient(k.Lambda_xy, weight)
