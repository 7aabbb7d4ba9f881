"""Upper limits of the outer step: quadratics on which AID and SOBA do not converge, and the remaining rate.

On g = (H/2)y² − ℓxy and f = (p/2)x² + qxy + (s/2)y², with scalar x and y, one iteration is a 3 × 3 matrix.
Its characteristic polynomial, with r = 1 − αH and t = 1 − ηH, is

    AID:   (z − 1)(z − r)(z − t) + β(p(z − r)(z − t) + qℓz(α(z − t) + η(z − r)) + sℓ²αηz²),
    SOBA:  the same with z = 1 in the factors of q and s,

and Jury's criterion gives the exact β from which it has a root outside the unit circle. β and f enter only
through their product. So an f that is unstable at β is, scaled down, unstable at a larger β: the limit for
one problem limits the class. Proofs: documentation, "Where κ⁴ ends".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bilevel.theory.certificates.certificate import GAP, quotient
from bilevel.theory.certificates.star import contraction
from bilevel.theory.constants import Blocks, Constants
from bilevel.theory.reals import Floats, Real, check_shapes, nonnegative, number, positive, scalar, step_count
from bilevel.words import shown

CURVED = "it is the curvature of g in y, and g is strongly convex"
CONVEX = 0.98  # share of the curvature of Φ that the mixed derivative may cancel


class Hessian(NamedTuple):
    """Second derivatives of a function of two numbers."""

    xx: Real
    xy: Real
    yy: Real

    def scaled(self, factor: Floats) -> Hessian:
        return Hessian(factor * self.xx, factor * self.xy, factor * self.yy)


@dataclass(frozen=True)
class UnstableInstance:
    """Problem with scalar x and y whose Φ has a strict local minimum at x = 0, where y* = 0 and v* = f_y/H.

    f = (f_x)x + (f_y)y + (p/2)x² + qxy + (s/2)y²,   g = (H/2)y² − ℓxy + (c₁/2)x²y + (c₂/2)xy² + (c₃/6)y³.

    The cubic part serves ρM > 0: the steps see f's Hessian less v* times g's third derivatives. Its constants
    hold for |x|, |y| ≤ `radius`; without it they hold everywhere, and f_x = f_y = v* = 0.
    """

    curvature: Real  # H
    coupling: Real  # ℓ
    slope: tuple[Real, Real]  # (f_x, f_y)
    hessian: Hessian  # (p, q, s)
    third: Hessian  # (c₁, c₂, c₃): the derivative of g's Hessian in y
    radius: float

    def f(self, x: Any, y: Any) -> Any:
        p, q, s = self.hessian
        return self.slope[0] * x + self.slope[1] * y + 0.5 * p * x * x + q * x * y + 0.5 * s * y * y

    def g(self, x: Any, y: Any) -> Any:
        c1, c2, c3 = self.third
        cubic = 0.5 * c1 * x * x * y + 0.5 * c2 * x * y * y + c3 / 6 * y * y * y
        return 0.5 * self.curvature * y * y - self.coupling * x * y + cubic

    @property
    def v_star(self) -> Real:
        return self.slope[1] / self.curvature

    @property
    def lagrangian(self) -> Hessian:
        """Return the Hessian of f − v*·∇_y g at 0, which AID and SOBA see instead of f's."""
        pairs = zip(self.hessian, self.third, strict=True)
        return Hessian(*(own - self.v_star * third for own, third in pairs))


@dataclass(frozen=True)
class SlopeInstance:
    """Problem with g = (μ/2)y² − ℓxy and f(x, y) = h(x), so that Φ = h; Φ(0) − inf Φ is the gap.

    h' = −m up to x = X, and then h' rises to 0 with slope f_xx. From x = 0 every method takes K − 1 steps of
    length βm before it reaches X.
    """

    mu: Floats
    coupling: Floats
    f_xx: Floats
    m: float
    X: float

    def f(self, x: Any, y: Any) -> Any:
        past, width = x - self.X, self.m / self.f_xx
        t = 0.5 * (abs(past) - abs(past - width) + width)  # x − X clipped to [0, width]
        return -self.m * x + self.f_xx * (t * past - 0.5 * t * t) + 0 * y

    def g(self, x: Any, y: Any) -> Any:
        return 0.5 * self.mu * y * y - self.coupling * x * y


@dataclass(frozen=True)
class StepLimit:
    """Limit of the outer step: for β ≥ `beta` some problem with these constants, α and η does not converge.

    At `beta` the worst of some extreme quadratics stops converging, exactly. For AID, the paper's constants
    and λ = L + ρM/μ, it is below 2/(λκ³) for α = η = 1/L (with ρM > 0, for κ ≥ ∛4). It is below 4/(λκ³) for α
    = η = 2/(L + μ). With ρM > 0 it is approached: for any larger step, some minimum of Φ is not attracting.
    """

    method: str
    constants: Constants | Blocks
    alpha: Floats
    eta: Floats
    beta: Floats
    curvature: Floats  # H of the worst quadratic
    lagrangian: Hessian  # and its p, q, s

    def instance(self, beta: Real | None = None, radius: Real = 0.0) -> UnstableInstance:
        """Return a problem that is unstable from `beta` on (default: the limit); a larger β scales f down.

        With ρM > 0 the constants hold within a positive `radius` around the minimum. The curvature there exceeds
        μ by 2ρ·radius, and the instance is unstable from a slightly larger β on (`first_unstable_beta`).
        """
        k = self._scalars()
        beta = scalar(self.beta if beta is None else positive(beta, "beta"), "beta")
        if not np.isfinite(self.beta):
            raise ValueError(
                "no outer step is too large: Φ has no curvature here, and there is no unstable instance"
            )
        if beta < self.beta:
            raise ValueError(
                f"beta = {beta:g} is below the limit {self.beta:g}: no unstable instance is known there; "
                "leave beta out for the one at the limit"
            )
        radius = scalar(nonnegative(radius, "radius", "it is a distance from the minimum"), "radius")
        scale = float(self.beta / beta)
        smallest = float(self.curvature) == k.mu
        room = (k.rho_xyy + k.rho_yyy) * radius
        H = float(self.curvature) + (room if smallest else -room)
        if not k.mu <= H <= k.L_yy:
            raise ValueError(f"radius = {radius:g} leaves no curvature between mu and L_yy; reduce it")
        pull = k.M_y if max(k.rho_xxy, k.rho_xyy, k.rho_yyy) > 0 else 0.0
        parts = zip(self.lagrangian, _lagrangian(k, self.curvature), strict=True)
        # Shares of the bounds, in [−1, 1].
        share = Hessian(*(scale * float(part / whole) if whole else 0.0 for part, whole in parts))
        third = Hessian(-share.xx * k.rho_xxy, -share.xy * k.rho_xyy, -share.yy * k.rho_yyy)
        return UnstableInstance(
            curvature=H,
            coupling=k.L_xy,
            slope=(-k.L_xy * pull / H, pull),  # so that ∇Φ(0) = f_x + ℓv* = 0
            hessian=Hessian(share.xx * k.f_xx, share.xy * k.f_xy, share.yy * k.f_yy),
            third=third.scaled(1.0 if pull else 0.0),
            radius=radius if pull else np.inf,
        )

    def rate(self, steps: Real, gap: Real) -> Floats:
        """Return gap/(β(K − 1) + 1/(2f_xx)) at the limit β; a smaller β has a larger mean on some problem."""
        steps, gap = step_count(steps), positive(gap, "gap", GAP)
        check_shapes(steps=steps, gap=gap, constants=self.beta)
        return _mean_slope(Blocks.of(self.constants).f_xx, steps, gap, self.beta)

    def slope_instance(self, steps: Real, gap: Real, beta: Real) -> SlopeInstance:
        """Return the problem with a mean ‖∇Φ‖² of gap/(β(K − 1) + 1/(2f_xx)) over K steps from x = 0."""
        k, beta = self._scalars(), scalar(positive(beta, "beta"), "beta")
        steps, gap = scalar(step_count(steps), "steps"), scalar(positive(gap, "gap", GAP), "gap")
        if k.f_xx == 0:
            raise ValueError("f_xx = 0: an f that is linear in x has no lowest value; give f_xx some room")
        m = float(np.sqrt(_mean_slope(k.f_xx, steps, gap, beta)))
        X = (steps - 1) * beta * m
        if not np.isfinite(X):
            raise ValueError(f"beta = {beta:g} overflows float64: pass a smaller one")
        return SlopeInstance(mu=k.mu, coupling=k.L_xy, f_xx=k.f_xx, m=m, X=X)

    def _scalars(self) -> Blocks:
        if np.ndim(self.beta) > 0:
            raise ValueError("an instance belongs to one set of constants: pass scalars, not arrays")
        return Blocks.of(self.constants)


def aid(constants: Constants | Blocks, alpha: Real | None = None, eta: Real | None = None) -> StepLimit:
    """Return the limit for AID with inner step α and adjoint step η, 2/(L_yy + μ) by default."""
    return _limit("AID", constants, alpha, eta)


def soba(constants: Constants | Blocks, alpha: Real | None = None, eta: Real | None = None) -> StepLimit:
    """Return the limit for SOBA, with all directions at the old point: below 2αL/(λκ³) for α = η."""
    return _limit("SOBA", constants, alpha, eta)


def first_unstable_beta(
    hessian: Hessian, coupling: Real, curvature: Real, alpha: Real, eta: Real, method: str = "AID"
) -> Floats:
    """Return the β at which the iteration on one quadratic stops converging; infinite if Φ has no minimum.

    Roots z₁, z₂, z₃ leave the unit circle at −1, where P(−1) = 0, or as a pair, where the product of 1 −
    z_iz_j is 0. The first is linear in β and the second quadratic, (1 − r)(1 − t)(1 − rt) + Q₁β + Q₂β².
    """
    if not isinstance(method, str) or method not in ("AID", "SOBA"):
        raise ValueError(f"no limit is known for {shown(method)}: the methods are AID and SOBA")
    if not isinstance(hessian, tuple) or len(hessian) != 3:
        raise TypeError(f"hessian must be a theory.limit.Hessian(xx, xy, yy), got {shown(hessian)}")
    p, q, s = (number(part, f"hessian.{name}") for part, name in zip(hessian, Hessian._fields, strict=True))
    ell, H = nonnegative(coupling, "coupling", "it is a norm"), positive(curvature, "curvature", CURVED)
    alpha, eta = positive(alpha, "alpha"), positive(eta, "eta")
    check_shapes(xx=p, xy=q, yy=s, coupling=ell, curvature=H, alpha=alpha, eta=eta)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        beta = _first_unstable(Hessian(p, q, s), ell, H, alpha, eta, method)
    if np.any(np.isnan(beta)):
        raise ValueError(
            f"curvature {np.max(H):g}, coupling {np.max(ell):g}, alpha {np.max(alpha):g} and eta {np.max(eta):g} "
            "overflow float64: measure x or y in other units"
        )
    return beta


def _first_unstable(
    hessian: Hessian, ell: Floats, H: Floats, alpha: Floats, eta: Floats, method: str
) -> Floats:
    (p, q, s), r, t = hessian, 1 - alpha * H, 1 - eta * H
    if method == "AID":
        A = p + q * ell * (alpha + eta) + s * ell**2 * alpha * eta
        B, C = -q * ell * (alpha * t + eta * r), 0.0
    else:
        A, B, C = p, q * ell * (alpha + eta), s * ell**2 * alpha * eta - q * ell * (alpha * t + eta * r)
    B, C = B - p * (r + t), C + p * r * t
    Q0 = (1 - r) * (1 - t) * (1 - r * t)
    Q1 = 2 * r * t * C - B - r * t * A - (1 + r + t) * C
    Q2 = C * (A - C)
    flip = quotient(2 * (1 + r) * (1 + t), A - B + C, np.inf)
    real = Q1**2 - 4 * Q0 * Q2
    pair = quotient(2 * Q0, np.where(real >= 0, np.sqrt(np.maximum(real, 0)) - Q1, 0.0), np.inf)
    bowl = p + 2 * q * ell / H + s * (ell / H) ** 2
    sizes = abs(p) + 2 * abs(q) * ell / H + abs(s) * (ell / H) ** 2
    return np.where(bowl > 1e-9 * sizes, np.minimum(flip, pair), np.inf)[()]


def _limit(method: str, constants: Constants | Blocks, alpha: Real | None, eta: Real | None) -> StepLimit:
    k = Blocks.of(constants)
    (alpha, _), (eta, _) = contraction(k, alpha, "alpha"), contraction(k, eta, "eta")
    candidates = [(H, hessian) for H in (k.mu, k.L_yy) for hessian in _extremes(k, H)]
    check_shapes(alpha=alpha, eta=eta, constants=np.asarray(k.L_Phi + k.kappa))
    values = [first_unstable_beta(hessian, k.L_xy, H, alpha, eta, method) for H, hessian in candidates]
    shape = np.broadcast_shapes(*(np.shape(value) for value in values))
    stack = lambda parts: np.stack([np.broadcast_to(part, shape) for part in parts])
    worst = np.argmin(stack(values), axis=0)[None]
    pick = lambda parts: np.take_along_axis(stack(parts), worst, axis=0)[0][()]
    hessian = Hessian(*(pick(parts) for parts in zip(*(hessian for _, hessian in candidates), strict=True)))
    return StepLimit(method, constants, alpha, eta, pick(values), pick([H for H, _ in candidates]), hessian)


def _lagrangian(k: Blocks, H: Floats) -> Hessian:
    """Return the largest blocks of f − ⟨v*, ∇_y g⟩ with v* = M_y/H, H the curvature of g; Λ for H = μ."""
    v = k.M_y / H
    return Hessian(k.f_xx + k.rho_xxy * v, k.f_xy + k.rho_xyy * v, k.f_yy + k.rho_yyy * v)


def _extremes(k: Blocks, H: Floats) -> list[Hessian]:
    """Return blocks at their bounds with either sign, and the lowest mixed block that leaves Φ convex."""
    (p, q, s), slope = _lagrangian(k, H), k.L_xy / H
    with np.errstate(divide="ignore", invalid="ignore"):
        most = 0.5 * CONVEX * (s * slope - p / np.asarray(slope))
    lean = -np.clip(np.nan_to_num(most, neginf=0.0), 0.0, q)
    return [Hessian(i * p, j * q, s) for i in (-1, 0, 1) for j in (-1, 0, 1)] + [Hessian(-p, lean, s)]


def _mean_slope(f_xx: Floats, steps: Floats, gap: Floats, beta: Floats) -> Floats:
    with np.errstate(divide="ignore", over="ignore"):
        return (gap / (beta * (steps - 1) + 0.5 / np.asarray(f_xx)))[()]
