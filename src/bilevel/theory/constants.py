"""The four constants every certificate starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevel.theory.blocks import Blocks
from bilevel.theory.reals import Floats, Real, nonnegative, positive, resolved


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
        fields = {
            "mu": positive(
                mu,
                "mu",
                "it is the strong convexity of g in y (its smallest Hessian eigenvalue); "
                "add a ridge term to the inner problem if it has none",
            ),
            "L": positive(
                L, "L", "it is the Lipschitz constant of the gradients of f and g (largest curvature)"
            ),
            "M": nonnegative(M, "M", "it bounds the gradient norm of f, so that f is M-Lipschitz"),
            "rho": nonnegative(
                rho, "rho", "it is the Lipschitz constant of g's second derivatives; 0 if g is quadratic"
            ),
        }
        try:
            np.broadcast_shapes(*(np.shape(value) for value in fields.values()))
        except ValueError:
            shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in fields.items())
            raise ValueError(
                f"the constants must broadcast against each other, got shapes {shapes}"
            ) from None
        low, high = np.broadcast_arrays(fields["mu"], fields["L"])
        if np.any(low > high):
            i = np.argmax(low > high)
            raise ValueError(
                f"mu = {low.flat[i]} exceeds L = {high.flat[i]}: mu is the smallest and L the largest curvature of "
                "g in y, so mu ≤ L; check whether the two are swapped"
            )
        for name, value in fields.items():
            object.__setattr__(self, name, float(value) if np.ndim(value) == 0 else value)
        with np.errstate(over="ignore", invalid="ignore"):
            in_range = np.isfinite(self.L_Phi) & np.isfinite(self.L_Phi_blockwise)
        if not np.all(in_range):
            raise ValueError(
                "the constants are so large, or mu so small, that L_Phi is beyond what float64 holds: measure x, y, f "
                "or g in other units"
            )

    @classmethod
    def of(cls, constants: Any) -> Constants:
        """The constants themselves, once they are the paper's and float64 can tell 1 − 1/κ from one."""
        if not isinstance(constants, Constants):
            raise TypeError(
                f"this analysis is stated for theory.Constants(mu, L, M, rho), not {type(constants).__name__}"
                + ("; theory.star takes blocks" if isinstance(constants, Blocks) else "")
                + ("; call .assume() on estimates" if hasattr(constants, "assume") else "")
            )
        resolved(constants.kappa)
        return constants

    @property
    def kappa(self) -> Floats:
        """Condition number κ = L/μ of the inner problem."""
        return self.L / self.mu

    @property
    def blocks(self) -> Blocks:
        """The same bounds block by block: every block of ∇²f and ∇²g at most L, every one of ∇³g at most ρ."""
        L, rho = self.L, self.rho
        return Blocks(self.mu, L, L, L, L, L, self.M, rho, rho, rho)

    @property
    def L_Phi(self) -> Floats:
        """Lipschitz constant of ∇Φ as the paper prints it, which Theorems 5.9 and 5.17 use.

        L_Φ = L + (2L² + ρM²)/μ + (2ρLM + L³)/μ² + ρL²M/μ³. Valid when L and ρ are joint Lipschitz constants
        (Assumptions 4.4 and 4.5 as written); all other certificates use `L_Phi_blockwise`, which always is.
        """
        L, M, kappa, bent = self.L, self.M, self.kappa, self.rho * self.M / self.mu
        return L + (2 * kappa * L + bent * M) + (2 * bent * kappa + kappa * kappa * L) + bent * kappa * kappa

    @property
    def L_Phi_blockwise(self) -> Floats:
        """(1 + κ)²(L + ρM/μ): Lipschitz constant of ∇Φ when L and ρ bound the derivatives block by block.

        It differs from `L_Phi` in one term, ρM/μ in place of ρM²/μ, and equals it when ρ = 0.
        """
        return (1 + self.kappa) * (1 + self.kappa) * (self.L + self.rho * self.M / self.mu)
