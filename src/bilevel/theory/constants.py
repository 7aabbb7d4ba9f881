"""Four constants of the paper: μ, L, M and ρ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevel.theory.blocks import Blocks, check_range, check_spectrum, declare
from bilevel.theory.reals import Floats, Real, check_kappa, nonnegative, positive

MU = (
    "it is the strong convexity of g in y (its smallest Hessian eigenvalue); "
    "add a ridge term to the inner problem if it has none"
)


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
        """Return the constants.

        Raise if they are not the constants of the paper, or if float64 cannot separate 1 − 1/κ from one.
        """
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
        """Return the same bounds block by block.

        L bounds every block of ∇²f and ∇²g, and ρ bounds every block of ∇³g.
        """
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
        """Return (1 + κ)²(L + ρM/μ).

        It is a Lipschitz constant of ∇Φ when L and ρ bound the derivatives block by block. It differs from
        `L_Phi` in one term, ρM/μ in place of ρM²/μ, and equals it when ρ = 0.
        """
        return (1 + self.kappa) * (1 + self.kappa) * (self.L + self.rho * self.M / self.mu)
