"""Claims: their type, and the claims about the assumptions along the segments of a run (`measurement`)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bilevel.theory.certificates import paper
from bilevel.theory.constants import Blocks
from bilevel.theory.verification.measurement import Run

ROUNDING = 1e-12  # by which a step size may exceed its limit, because α = 1/L is computed
Sides = tuple[Any, Any]  # arrays with one entry or one row per iteration, or a number for all of them


@dataclass(frozen=True)
class Setting:
    """Constants and step sizes of a run, with the paper's certificates for them."""

    method: str  # "AID", "ITD" or "SOBA"
    constants: Any  # Constants, or Blocks, which the paper does not cover
    alpha: float
    beta: float
    eta: float | None  # ITD has none
    y_start: float  # ‖y_0 − y*_0‖
    inner_steps: int = 1
    adjoint_steps: int = 1

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks.of(self.constants)

    @cached_property
    def aid(self) -> paper.AIDCertificate:
        """Return Theorem 5.9's certificate with the largest β."""
        return paper.aid(self.constants)

    @cached_property
    def R_y(self) -> float:
        """Return the smallest radius that meets Lemma 5.12's hypotheses for this start and this β."""
        per_unit = paper.radius_beta(self.constants, 1.0, self.alpha)
        return float(max(paper.itd(self.constants).R_y_min, self.y_start, self.beta / per_unit))

    @cached_property
    def itd(self) -> paper.ITDCertificate:
        """Return Theorem 5.17's certificate with the largest β."""
        return paper.itd(self.constants, self.R_y)


Hypothesis = Callable[[Run, Setting], str | None]


@dataclass(frozen=True)
class Claim:
    """lhs ≤ rhs at every iteration, if all hypotheses hold (a hypothesis returns an objection, or `None`)."""

    name: str
    statement: str
    sides: Callable[[Run, Setting], Sides]
    needs: tuple[Hypothesis, ...] = ()
    first: int = 0  # the iteration of the first entry; for a bound on a mean, the number of steps


class Claims(list[Claim]):
    """Claims in order; `@claims.add(...)` appends a function of both sides."""

    def add(self, name: str, statement: str, *needs: Hypothesis, first: int = 0) -> Callable[[Any], Any]:
        def append(sides: Callable[[Run, Setting], Sides]) -> Any:
            self.append(Claim(name, statement, sides, needs, first))
            return sides

        return append


def at_most(symbol: str, value: float | None, limit: Any, meaning: str) -> str | None:
    if value is not None and value <= limit * (1 + ROUNDING):
        return None
    return f"{symbol} = {value:.3g} exceeds {meaning} = {limit:.3g}"


def equal(symbol: str, value: float | None, target: Any, meaning: str) -> str | None:
    if value is not None and abs(value - target) <= target * ROUNDING:
        return None
    return f"{symbol} = {value:.3g} is not {meaning} = {target:.3g}"


def dense(r: Run, s: Setting) -> str | None:
    return None if r.at_x.cross is not None else "not measured: x or y is too large for dense Jacobians"


def everywhere(r: Run, quantity: str) -> np.ndarray:
    """Return a quantity on all pieces of the run, one row per iteration."""
    return np.concatenate([getattr(piece, quantity) for piece in (r.at_x, r.to_next, r.since_last)], axis=-1)


def point_step(r: Run) -> np.ndarray:
    return np.hypot(everywhere(r, "x_step"), everywhere(r, "y_step"))


def strongly_convex(r: Run, s: Setting) -> Sides:
    return s.constants.mu, everywhere(r, "curvature_low")


def outer_smooth(r: Run, s: Setting) -> Sides:
    change = np.hypot(everywhere(r, "outer_x_change"), everywhere(r, "outer_y_change"))
    return change, s.constants.L * point_step(r)


def second_derivatives(r: Run, s: Setting) -> Sides:
    change = np.maximum(everywhere(r, "hessian_change"), everywhere(r, "cross_change"))
    return change, s.constants.rho * point_step(r)


# As the paper states them: jointly in (x, y), except that ∇²_yy g and ∇²_xy g are bounded separately.
ASSUMPTIONS = (
    Claim("Assumption 4.2: strong convexity (μ)", "μ ≤ λ_min ∇²_yy g", strongly_convex, (dense,)),
    Claim(
        "Assumption 4.3: f's slope in y (M)",
        "‖∇_y f‖ ≤ M at ŷ_k and along y*(x)",
        lambda r, s: (np.column_stack([r.outer_y, r.to_next.outer_y]), s.constants.M),
    ),
    Claim("Assumption 4.4: ∇f is Lipschitz (L)", "‖∇f(z) − ∇f(z')‖ ≤ L‖z − z'‖", outer_smooth),
    Claim(
        "Assumption 4.4: ∇_y g is Lipschitz (L)",
        "‖∇²_yy g‖, ‖∇²_xy g‖ ≤ L",
        lambda r, s: (np.maximum(everywhere(r, "curvature_high"), everywhere(r, "cross")), s.constants.L),
        (dense,),
    ),
    Claim(
        "Assumption 4.5: second derivatives (ρ)",
        "‖∇²_·y g(z) − ∇²_·y g(z')‖ ≤ ρ‖z − z'‖",
        second_derivatives,
        (dense,),
    ),
)

# Only ITD's radius lemma (5.12) uses a bound on ∇_x f, so AID is not judged by it.
SLOPE_IN_X = Claim(
    "Assumption 4.3: f's slope in x (M)",
    "‖∇_x f‖ ≤ M at ŷ_k and y*_k",
    lambda r, s: (r.outer_x, s.constants.M),
)


def block_bound(what: str, norm: str, constant: str, quantity: str, *needs: Hypothesis) -> Claim:
    """Return the claim quantity ≤ constant."""
    sides = lambda r, s: (everywhere(r, quantity), getattr(s.blocks, constant))
    return Claim(f"Blocks: {what} ({constant})", f"{norm} ≤ {constant}", sides, needs)


def block_change(what: str, quantity: str, in_x: str, in_y: str, *needs: Hypothesis) -> Claim:
    """Return the claim ‖change‖ ≤ in_x·‖x − x'‖ + in_y·‖y − y'‖."""
    statement = f"‖{what}(z) − {what}(z')‖ ≤ {in_x}·‖x − x'‖ + {in_y}·‖y − y'‖"

    def sides(r: Run, s: Setting) -> Sides:
        x_step, y_step = everywhere(r, "x_step"), everywhere(r, "y_step")
        return everywhere(r, quantity), getattr(s.blocks, in_x) * x_step + getattr(s.blocks, in_y) * y_step

    return Claim(f"Blocks: slope of {what} ({in_x}, {in_y})", statement, sides, needs)


BLOCKWISE = (
    Claim("Blocks: strong convexity (mu)", "mu ≤ λ_min ∇²_yy g", strongly_convex, (dense,)),
    block_bound("curvature of g", "‖∇²_yy g‖", "L_yy", "curvature_high", dense),
    block_bound("coupling in g", "‖∇²_xy g‖", "L_xy", "cross", dense),
    Claim(
        "Blocks: f's slope in y (M_y)",
        "‖∇_y f(x, y*(x))‖ ≤ M_y",
        lambda r, s: (r.to_next.outer_y, s.blocks.M_y),
    ),
    block_change("∇_x f", "outer_x_change", "f_xx", "f_xy"),
    block_change("∇_y f", "outer_y_change", "f_xy", "f_yy"),
    block_change("∇²_xy g", "cross_change", "rho_xxy", "rho_xyy", dense),
    block_change("∇²_yy g", "hessian_change", "rho_xyy", "rho_yyy", dense),
)
