"""AID with momentum on y and v, certified where ∇²_yy g is constant: κ^2.5 where plain steps have κ³.

A momentum method follows a drifting target with a lag of about 2√κ steps instead of κ. Its error system is
not positive, so its gain is an H∞ norm, the largest over the spectrum of ∇²_yy g (`momentum_gains`). If that
Hessian depends on x or y, the modes are coupled and no certificate here holds.
"""

from dataclasses import dataclass

import numpy as np
import optax

from bilevel.theory.certificates.certificate import Certificate, Errors, StepSizes, inverse
from bilevel.theory.certificates.gain import EVERY_STEP, largest_good_step
from bilevel.theory.certificates.momentum_gains import MomentumLoop
from bilevel.theory.certificates.storage import largest_step, lowest_mean
from bilevel.theory.constants import Blocks, Constants
from bilevel.theory.reals import Floats, Real, check_kappa, check_shapes, number, positive

DAMPING, STRETCH = 1.25, 1.25  # of the heavy ball: (1 − m)/√(αμ), and αL_yy/(1 + m), which must be below 2


@dataclass(frozen=True)
class MomentumCertificate(Certificate):
    """Bounds for any β < beta_max. With T = β·unit_gain, γ = 1 − βL_Φ and I the ℓ₂ norm of the free response:

    (Σ_{k<K} e_k²)^½ ≤ T(Σ_{k<K} ‖h_k‖²)^½ + I,    Σ_{k<K} ‖∇Φ(x_k)‖² ≤ 2·gap/β + I²γ/(γ − T²).
    """

    m: Floats  # the momentum of both rules
    nesterov: bool
    unit_gain: Floats
    transient: tuple[Floats, Floats]  # I per unit of y₀'s and of v₀'s error

    @property
    def beta_max(self) -> Floats:
        return largest_step(Blocks.of(self.constants).L_Phi, self.unit_gain)

    def _bound(self, steps: Floats, gap: Floats, errors: Errors, beta: Floats) -> Floats:
        beta = np.asarray(beta)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            T, price = beta * self.unit_gain, 1 - beta * Blocks.of(self.constants).L_Phi
            free = np.square(self.transient[0] * errors[0] + self.transient[1] * errors[1]) / steps
            stored = lambda price: np.where(free > 0, free * price / np.maximum(price - T**2, 0), 0.0)
            bound = np.asarray(lowest_mean(2 * gap / (beta * steps), price, T, stored))
        certified = (beta <= self.beta_max) & ~np.isnan(bound) & ~np.isnan(free)
        return np.where(certified, bound, np.inf)[()]

    def _best_beta(self, steps: Floats, gap: Floats, errors: Errors, slack: Floats) -> Floats:
        if not np.all(np.isfinite(self.beta_max)):
            raise ValueError(EVERY_STEP)
        objective = lambda beta: self._bound(steps, gap, errors, beta)
        return largest_good_step(objective, self.beta_max, slack)

    def step_sizes(
        self, steps: Real, gap: Real, y_error: Real = 0.0, v_error: Real | None = None
    ) -> StepSizes:
        """Return both optax rules and the best β: `bl.aid(problem, **sizes._asdict())` is certified."""
        beta = self.best_beta(steps, gap, y_error, v_error)
        if np.ndim(self.alpha) or np.ndim(self.m) or np.ndim(beta):
            raise ValueError(
                f"step_sizes is for one problem, not for a grid of shape {np.shape(beta)}: read .alpha, .eta, .m and "
                ".best_beta(...) separately"
            )
        rule = lambda size: optax.sgd(float(size), momentum=float(self.m), nesterov=self.nesterov)
        return StepSizes(rule(self.alpha), rule(self.eta), beta)


def aid(
    constants: Constants | Blocks, alpha: Real | None = None, eta: Real | None = None, m: Real | None = None
) -> MomentumCertificate:
    """Return the certificate of AID with `optax.sgd(alpha, momentum=m, nesterov=True)` on y and `eta` on v.

    By default α = η = 1/L_yy and m = (√κ − 1)/(√κ + 1). Then the lag is (1 − m)κ − 1, about 2√κ, and for the
    paper's constants with ρ = 0 the gain of d on e is 2Lκ(κ + 1)((1 − m)κ − 1). Needs rho_xyy = rho_yyy = 0.
    """
    k = _with_constant_hessian(constants)
    root = np.sqrt(k.kappa)
    alpha, eta = (1 / k.L_yy if step is None else step for step in (alpha, eta))
    return _certificate("Nesterov", constants, alpha, eta, (root - 1) / (root + 1) if m is None else m, True)


def heavy_ball(
    constants: Constants | Blocks, alpha: Real | None = None, eta: Real | None = None, m: Real | None = None
) -> MomentumCertificate:
    """Return the certificate of AID with `optax.sgd(alpha, momentum=m)` on y, and with `eta` on v.

    By default α = η = 5(1 + m)/4L_yy, five eighths of the largest stable step, and m = 1 − 1.25√(αμ). The
    certified β is about 2.2 times the β for Nesterov's rule. Polyak's α = 4/(√L_yy + √μ)² and m = ((√κ −
    1)/(√κ + 1))², with lag √κ − 1, are certified as well. A wrong start then costs κ^¾ times its error
    instead of κ^¼. Needs rho_xyy = rho_yyy = 0.
    """
    k = _with_constant_hessian(constants)
    share = DAMPING**2 * STRETCH / k.kappa  # (1 − m)² = share·(1 + m)
    best = np.maximum(1 - (np.sqrt(share**2 + 8 * share) - share) / 2, 0.0)
    m = best if m is None else number(m, "m")
    alpha, eta = (STRETCH * (1 + m) / k.L_yy if step is None else step for step in (alpha, eta))
    return _certificate("heavy ball", constants, alpha, eta, m, False)


def _certificate(analysis, constants, alpha, eta, m, nesterov) -> MomentumCertificate:
    """Return the certificate of these three bounds.

    ‖a‖ ≤ Γ_y L_xy‖d‖ + I_y,  ‖b‖ ≤ Γ_v(f_xy + f_yy L_xy/μ)‖d‖ + Γ_w f_yy‖a‖ + I_v  and  e ≤ f_xy a + L_xy b.
    """
    k = Blocks.of(constants)
    check_kappa(k.kappa)
    alpha, eta, m = positive(alpha, "alpha"), positive(eta, "eta"), number(m, "m")
    check_shapes(alpha=alpha, eta=eta, m=m, constants=np.asarray(k.L_Phi + k.kappa))
    y, v = _gains(alpha, m, k, nesterov), _gains(eta, m, k, nesterov)
    per_a = k.f_xy + k.L_xy * v["force"] * k.f_yy
    gain = per_a * y["drift"] * k.L_xy + k.L_xy * v["drift"] * (k.f_xy + k.f_yy * k.y_slope)
    limits = {"smoothness": inverse(k.L_Phi), "error feedback": inverse(gain)}
    if not np.all(np.isfinite(gain)):
        raise ValueError(
            f"with m = {np.max(m):g} the step sizes {np.max(alpha):g} and {np.max(eta):g} are so close to the "
            "largest stable ones that their gain is numerically infinite: take smaller ones"
        )
    transient = per_a * y["free"], k.L_xy * v["free"]
    return MomentumCertificate(analysis, "AID", constants, alpha, eta, limits, m, nesterov, gain, transient)


def _gains(step: Floats, m: Floats, k: Blocks, nesterov: bool) -> dict[str, Floats]:
    def each(step, m, mu, L):
        loop = MomentumLoop(step, m, mu, L, nesterov)
        return loop.drift, loop.force, loop.free

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = np.vectorize(each, otypes=[float] * 3)(step, m, k.mu, k.L_yy)
    return {name: values[()] for name, values in zip(("drift", "force", "free"), found, strict=True)}


def _with_constant_hessian(constants: Constants | Blocks) -> Blocks:
    k = Blocks.of(constants)
    for name in ("rho_xyy", "rho_yyy"):
        if np.any(np.greater(getattr(k, name), 0)):
            raise ValueError(
                f"{name} = {np.max(getattr(k, name)):g}: momentum is certified only for a constant ∇²_yy g, that is "
                "rho_xyy = rho_yyy = 0 (g quadratic in y, with a Hessian that does not depend on x); for any other g "
                "take theory.star.aid, which certifies plain steps"
            )
    return k
