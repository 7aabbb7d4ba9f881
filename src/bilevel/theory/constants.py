"""Constants of a problem: the paper's μ, L, M and ρ, and the same block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevel.theory.reals import Floats, Real, check_kappa, check_shapes, nonnegative, positive

MU = (
    "it is the strong convexity of g in y (its smallest Hessian eigenvalue); "
    "add a ridge term to the inner problem if it has none"
)


@dataclass(frozen=True, init=False)
class Blocks:
    """Bounds on the derivatives of f and g, block by block.

    * `mu`, `L_yy`: the spectrum of ∇²_yy g is in [mu, L_yy];
    * `L_xy`: ‖∇²_xy g‖ ≤ L_xy;
    * `f_xx`, `f_xy`, `f_yy`: norms of the blocks of ∇²f (Lipschitz constants of ∇_x f in x and in y, of ∇_y f
      in y);
    * `M_y`: ‖∇_y f(x, y*(x))‖ ≤ M_y, at the solution only;
    * `rho_xxy`, `rho_xyy`, `rho_yyy`: norms of the third derivatives of g, so that ∇²_xy g has slope
      `rho_xxy` in x and `rho_xyy` in y, and ∇²_yy g has slope `rho_xyy` in x and `rho_yyy` in y.

    The paper's μ, L, M and ρ are the case in which all constants of a kind are equal (`Constants.blocks`).
    Where they differ, bounds shrink: a weak coupling L_xy, an f that is linear in y, a quadratic g. Fields
    may be arrays that broadcast.

    All bounds must hold on a convex set that contains the run, its solutions and the curve (x, y*(x)) between.
    """

    mu: Floats
    L_yy: Floats
    L_xy: Floats
    f_xx: Floats
    f_xy: Floats
    f_yy: Floats
    M_y: Floats
    rho_xxy: Floats = 0.0
    rho_xyy: Floats = 0.0
    rho_yyy: Floats = 0.0

    def __init__(
        self,
        mu: Real,
        L_yy: Real,
        L_xy: Real,
        f_xx: Real,
        f_xy: Real,
        f_yy: Real,
        M_y: Real,
        rho_xxy: Real = 0.0,
        rho_xyy: Real = 0.0,
        rho_yyy: Real = 0.0,
    ) -> None:
        ends = "it bounds the eigenvalues of ∇²_yy g; add a ridge term to the inner problem if it has none"
        spectrum = {"mu": positive(mu, "mu", ends), "L_yy": positive(L_yy, "L_yy", ends)}
        norms = {"L_xy": L_xy, "f_xx": f_xx, "f_xy": f_xy, "f_yy": f_yy, "M_y": M_y}
        norms |= {"rho_xxy": rho_xxy, "rho_xyy": rho_xyy, "rho_yyy": rho_yyy}
        declare(self, spectrum | {n: nonnegative(value, n, "it bounds a norm") for n, value in norms.items()})
        check_spectrum(self.mu, self.L_yy, "L_yy")
        with np.errstate(over="ignore", invalid="ignore"):
            check_range(self.kappa, self.v_slope, self.L_Phi)

    @classmethod
    def of(cls, constants: Any) -> Blocks:
        """Return the blocks, or convert the paper's constants to blocks."""
        if isinstance(constants, Blocks):
            return constants
        blocks = getattr(constants, "blocks", None)
        if not isinstance(blocks, Blocks):
            raise TypeError(
                f"a certificate takes theory.Constants or theory.Blocks, not {type(constants).__name__}"
                + ("; call .assume() on estimates" if hasattr(constants, "assume") else "")
            )
        return blocks

    @property
    def kappa(self) -> Floats:
        """Return L_yy/μ, the condition number of the inner iteration."""
        return self.L_yy / self.mu

    @property
    def y_slope(self) -> Floats:
        """Return L_xy/μ: Lipschitz constant of y*(x) (κ for the paper's constants)."""
        return self.L_xy / self.mu

    @property
    def Lambda_xx(self) -> Floats:
        """Return f_xx + rho_xxy·M_y/μ. The Λ bound the Hessian blocks of f − ⟨v*, ∇_y g⟩ for a fixed v*."""
        return self.f_xx + self.rho_xxy * self.M_y / self.mu

    @property
    def Lambda_xy(self) -> Floats:
        """Return f_xy + rho_xyy·M_y/μ (λ = L + ρM/μ for the paper's constants, like the other two)."""
        return self.f_xy + self.rho_xyy * self.M_y / self.mu

    @property
    def Lambda_yy(self) -> Floats:
        """Return f_yy + rho_yyy·M_y/μ."""
        return self.f_yy + self.rho_yyy * self.M_y / self.mu

    @property
    def v_slope(self) -> Floats:
        """Return (Λ_xy + Λ_yy·L_xy/μ)/μ: Lipschitz constant in x of v* = (∇²_yy g)⁻¹∇_y f, taken at y*."""
        return (self.Lambda_xy + self.Lambda_yy * self.y_slope) / self.mu

    @property
    def L_Phi(self) -> Floats:
        """Return Λ_xx + 2Λ_xy·L_xy/μ + Λ_yy·(L_xy/μ)² ≥ ‖∇²Φ‖, as ∇²Φ = (I, J)ᵀΛ(I, J) with J = ∇y*."""
        s = self.y_slope
        return self.Lambda_xx + 2 * self.Lambda_xy * s + self.Lambda_yy * s * s


@dataclass(frozen=True, init=False)
class Constants:
    """Constants of the bilevel problem min_x f(x, y*(x)), y*(x) = argmin_y g(x, y).

    * `mu`: g(x, ·) is mu-strongly convex (Assumption 4.2);
    * `M`: ‖∇f‖ ≤ M (Assumption 4.3; the AID lemmas use only ‖∇_y f‖ ≤ M);
    * `L`: ∇f and ∇g are L-Lipschitz (Assumption 4.4; every lemma uses it block by block);
    * `rho`: ∇²_xy g and ∇²_yy g are rho-Lipschitz (Assumption 4.5).

    Fields may be arrays that broadcast against each other: a grid of condition numbers is one object, and
    everything computed from it has the broadcast shape.
    """

    mu: Floats
    L: Floats
    M: Floats
    rho: Floats

    def __init__(self, mu: Real, L: Real, M: Real, rho: Real) -> None:
        curvature = "it is the Lipschitz constant of the gradients of f and g (largest curvature)"
        slope = "it bounds the gradient norm of f, so that f is M-Lipschitz"
        bend = "it is the Lipschitz constant of g's second derivatives; 0 if g is quadratic"
        values = {"mu": positive(mu, "mu", MU), "L": positive(L, "L", curvature)}
        declare(self, values | {"M": nonnegative(M, "M", slope), "rho": nonnegative(rho, "rho", bend)})
        check_spectrum(self.mu, self.L, "L")
        with np.errstate(over="ignore", invalid="ignore"):
            check_range(self.L_Phi, self.L_Phi_blockwise)

    @classmethod
    def of(cls, constants: Any) -> Constants:
        """Return the constants; raise if they are not the paper's, or if float64 rounds 1 − 1/κ to one."""
        if not isinstance(constants, Constants):
            raise TypeError(
                f"this analysis is stated for theory.Constants(mu, L, M, rho), not {type(constants).__name__}"
                + ("; theory.star takes blocks" if isinstance(constants, Blocks) else "")
                + ("; call .assume() on estimates" if hasattr(constants, "assume") else "")
            )
        check_kappa(constants.kappa)
        return constants

    @property
    def kappa(self) -> Floats:
        """Return the condition number κ = L/μ of the inner problem."""
        return self.L / self.mu

    @property
    def blocks(self) -> Blocks:
        """Return the same bounds by block: L for every block of ∇²f and ∇²g, ρ for every block of ∇³g."""
        L, rho = self.L, self.rho
        return Blocks(self.mu, L, L, L, L, L, self.M, rho, rho, rho)

    @property
    def L_Phi(self) -> Floats:
        """Return the Lipschitz constant of ∇Φ as the paper prints it, which Theorems 5.9 and 5.17 use.

        L_Φ = L + (2L² + ρM²)/μ + (2ρLM + L³)/μ² + ρL²M/μ³. Valid when L and ρ are joint Lipschitz constants
        (Assumptions 4.4 and 4.5 as written). All other certificates use `L_Phi_blockwise`, which is always valid.
        """
        L, M, kappa, bent = self.L, self.M, self.kappa, self.rho * self.M / self.mu
        return L + (2 * kappa * L + bent * M) + (2 * bent * kappa + kappa * kappa * L) + bent * kappa * kappa

    @property
    def L_Phi_blockwise(self) -> Floats:
        """Return (1 + κ)²(L + ρM/μ), a Lipschitz constant of ∇Φ when L and ρ bound the derivatives by block.

        It differs from `L_Phi` in one term, ρM/μ in place of ρM²/μ, and equals it when ρ = 0.
        """
        return (1 + self.kappa) * (1 + self.kappa) * (self.L + self.rho * self.M / self.mu)


def declare(constants: Any, values: dict[str, Floats]) -> None:
    """Set the fields of frozen `constants`, after a check that they broadcast against each other."""
    check_shapes(**values)
    for name, value in values.items():
        object.__setattr__(constants, name, float(value) if np.ndim(value) == 0 else value)


def check_spectrum(mu: Floats, L: Floats, name: str) -> None:
    low, high = np.broadcast_arrays(mu, L)
    if np.any(low > high):
        i = np.argmax(low > high)
        raise ValueError(
            f"mu = {low.flat[i]} exceeds {name} = {high.flat[i]}: mu is the smallest and {name} the largest curvature "
            f"of g in y, so mu ≤ {name}; check whether the two are swapped"
        )


def check_range(*derived: Floats) -> None:
    if not all(np.all(np.isfinite(value)) for value in derived):
        raise ValueError(
            "the constants are so large, or mu so small, that L_Phi is beyond what float64 holds: measure x, y, f "
            "or g in other units"
        )
