"""Constants block by block, and the three numbers that every certificate of tracking is made of."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bilevel.theory.reals import Floats, Real, nonnegative, positive


@dataclass(frozen=True, init=False)
class Blocks:
    """Bounds on the derivatives of f and g, block by block.

    * `mu`, `L_yy`: the spectrum of ∇²_yy g lies in [mu, L_yy];
    * `L_xy`: ‖∇²_xy g‖ ≤ L_xy;
    * `f_xx`, `f_xy`, `f_yy`: norms of the blocks of ∇²f (Lipschitz constants of ∇_x f in x and in y, of ∇_y f in y);
    * `M_y`: ‖∇_y f(x, y*(x))‖ ≤ M_y, at the solution only;
    * `rho_xxy`, `rho_xyy`, `rho_yyy`: norms of the third derivatives of g, so that ∇²_xy g has slope `rho_xxy` in x and
      `rho_xyy` in y, and ∇²_yy g has slope `rho_xyy` in x and `rho_yyy` in y.

    The paper's μ, L, M and ρ are the case in which all of a kind are equal (`Constants.blocks`). Where they differ,
    bounds shrink: a weak coupling L_xy, an f that is linear in y, a quadratic g. Fields may be arrays that broadcast.

    All of it is needed on a convex set that contains the run: the segments between iterates and solutions, and the
    curve (x, y*(x)) along the steps of x.
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
        given = {
            "mu": mu,
            "L_yy": L_yy,
            "L_xy": L_xy,
            "f_xx": f_xx,
            "f_xy": f_xy,
            "f_yy": f_yy,
            "M_y": M_y,
            "rho_xxy": rho_xxy,
            "rho_xyy": rho_xyy,
            "rho_yyy": rho_yyy,
        }
        for name in ("mu", "L_yy"):
            meaning = (
                "it bounds the eigenvalues of ∇²_yy g; add a ridge term to the inner problem if it has none"
            )
            object.__setattr__(self, name, _plain(positive(given.pop(name), name, meaning)))
        for name, value in given.items():
            object.__setattr__(self, name, _plain(nonnegative(value, name, "it bounds a norm")))
        try:
            np.broadcast_shapes(*(np.shape(getattr(self, field.name)) for field in fields(Blocks)))
        except ValueError:
            shapes = ", ".join(
                f"{field.name} {np.shape(getattr(self, field.name))}" for field in fields(Blocks)
            )
            raise ValueError(f"the blocks must broadcast against each other, got shapes {shapes}") from None
        low, high = np.broadcast_arrays(self.mu, self.L_yy)
        if np.any(low > high):
            i = np.argmax(low > high)
            raise ValueError(
                f"mu = {low.flat[i]} exceeds L_yy = {high.flat[i]}: they are the smallest and the largest "
                "curvature of g in y; check whether the two are swapped"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            in_range = np.isfinite(self.kappa) & np.isfinite(self.v_slope) & np.isfinite(self.L_Phi)
        if not np.all(in_range):
            raise ValueError(
                "the constants are so large, or mu so small, that L_Phi is beyond what float64 holds: measure x, y, f "
                "or g in other units"
            )

    @classmethod
    def of(cls, constants: Any) -> Blocks:
        """The blocks themselves, or those that the paper's constants amount to."""
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
        """L_yy/μ, what the inner iteration feels."""
        return self.L_yy / self.mu

    @property
    def y_slope(self) -> Floats:
        """L_xy/μ: how fast y* moves with x (κ for the paper's constants)."""
        return self.L_xy / self.mu

    @property
    def Lambda_xx(self) -> Floats:
        """f_xx + rho_xxy·M_y/μ. The three bound the Hessian blocks of f − ⟨v*, ∇_y g⟩, with v* held fixed."""
        return self.f_xx + self.rho_xxy * self.M_y / self.mu

    @property
    def Lambda_xy(self) -> Floats:
        """f_xy + rho_xyy·M_y/μ (λ = L + ρM/μ for the paper's constants, like the other two)."""
        return self.f_xy + self.rho_xyy * self.M_y / self.mu

    @property
    def Lambda_yy(self) -> Floats:
        """f_yy + rho_yyy·M_y/μ."""
        return self.f_yy + self.rho_yyy * self.M_y / self.mu

    @property
    def v_slope(self) -> Floats:
        """(Λ_xy + Λ_yy·L_xy/μ)/μ: how fast v* = (∇²_yy g)⁻¹∇_y f, at y*, moves with x."""
        return (self.Lambda_xy + self.Lambda_yy * self.y_slope) / self.mu

    @property
    def L_Phi(self) -> Floats:
        """Λ_xx + 2Λ_xy·L_xy/μ + Λ_yy·(L_xy/μ)², a Lipschitz constant of ∇Φ: ∇²Φ = (I, J)ᵀΛ(I, J) with J = ∇y*."""
        return (
            self.Lambda_xx + 2 * self.Lambda_xy * self.y_slope + self.Lambda_yy * self.y_slope * self.y_slope
        )


def _plain(value: Floats) -> Floats:
    return float(value) if np.ndim(value) == 0 else value
