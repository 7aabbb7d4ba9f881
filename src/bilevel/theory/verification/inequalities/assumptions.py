"""Assumptions along the segments of a run, with three points inside each (`segments`).

A violation here proves a constant wrong. The converse does not hold: a run visits few points of a region.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bilevel.theory.verification.inequalities.claim import Claim, Claims, dense
from bilevel.theory.verification.measurement import Run

# As the paper states them: jointly in (x, y), except that ∇²_yy g and ∇²_xy g are bounded separately.
ASSUMPTIONS = Claims()
BLOCKWISE = Claims()


def everywhere(r: Run, quantity: str) -> np.ndarray:
    """Return a quantity on all pieces of the run, one row per iteration."""
    return np.concatenate([getattr(piece, quantity) for piece in (r.at_x, r.to_next, r.since_last)], axis=-1)


def point_step(r):
    return np.hypot(everywhere(r, "x_step"), everywhere(r, "y_step"))


def bounded_by(constant: str, quantity: Callable[[Run], Any]) -> Callable[..., Any]:
    """Return the sides of quantity ≤ constant."""

    def sides(r, s):
        seen = quantity(r)
        return seen, np.full_like(seen, getattr(s.constants, constant))

    return sides


@BLOCKWISE.add("Blocks: strong convexity (mu)", "mu ≤ λ_min ∇²_yy g", dense)
@ASSUMPTIONS.add("Assumption 4.2: strong convexity (μ)", "μ ≤ λ_min ∇²_yy g", dense)
def strongly_convex(r, s):
    seen = everywhere(r, "curvature_low")
    return np.full_like(seen, s.constants.mu), seen


ASSUMPTIONS.add("Assumption 4.3: f's slope in y (M)", "‖∇_y f‖ ≤ M at ŷ_k and along y*(x)")(
    bounded_by("M", lambda r: np.column_stack([r.outer_y, r.to_next.outer_y]))
)


@ASSUMPTIONS.add("Assumption 4.4: ∇f is Lipschitz (L)", "‖∇f(z) − ∇f(z')‖ ≤ L‖z − z'‖")
def outer_smooth(r, s):
    change = np.hypot(everywhere(r, "outer_x_change"), everywhere(r, "outer_y_change"))
    return change, s.constants.L * point_step(r)


ASSUMPTIONS.add("Assumption 4.4: ∇_y g is Lipschitz (L)", "‖∇²_yy g‖, ‖∇²_xy g‖ ≤ L", dense)(
    bounded_by("L", lambda r: np.maximum(everywhere(r, "curvature_high"), everywhere(r, "cross")))
)


@ASSUMPTIONS.add("Assumption 4.5: second derivatives (ρ)", "‖∇²_·y g(z) − ∇²_·y g(z')‖ ≤ ρ‖z − z'‖", dense)
def second_derivatives(r, s):
    change = np.maximum(everywhere(r, "hessian_change"), everywhere(r, "cross_change"))
    return change, s.constants.rho * point_step(r)


# Only ITD's radius lemma (5.12) uses a bound on ∇_x f, so AID is not judged by it.
SLOPE_IN_X = Claim(
    "Assumption 4.3: f's slope in x (M)", "‖∇_x f‖ ≤ M at ŷ_k and y*_k", bounded_by("M", lambda r: r.outer_x)
)

BLOCKWISE.add("Blocks: curvature of g (L_yy)", "‖∇²_yy g‖ ≤ L_yy", dense)(
    bounded_by("L_yy", lambda r: everywhere(r, "curvature_high"))
)
BLOCKWISE.add("Blocks: coupling in g (L_xy)", "‖∇²_xy g‖ ≤ L_xy", dense)(
    bounded_by("L_xy", lambda r: everywhere(r, "cross"))
)
BLOCKWISE.add("Blocks: f's slope in y (M_y)", "‖∇_y f(x, y*(x))‖ ≤ M_y")(
    bounded_by("M_y", lambda r: r.to_next.outer_y)
)


def add_block_change(quantity: str, what: str, in_x: str, in_y: str, *needs) -> None:
    """Add the claim ‖change‖ ≤ in_x·‖x − x'‖ + in_y·‖y − y'‖."""
    statement = f"‖{what}(z) − {what}(z')‖ ≤ {in_x}·‖x − x'‖ + {in_y}·‖y − y'‖"

    @BLOCKWISE.add(f"Blocks: slope of {what} ({in_x}, {in_y})", statement, *needs)
    def sides(r, s):
        x_step, y_step = everywhere(r, "x_step"), everywhere(r, "y_step")
        return everywhere(r, quantity), getattr(s.blocks, in_x) * x_step + getattr(s.blocks, in_y) * y_step


add_block_change("outer_x_change", "∇_x f", "f_xx", "f_xy")
add_block_change("outer_y_change", "∇_y f", "f_xy", "f_yy")
add_block_change("cross_change", "∇²_xy g", "rho_xxy", "rho_xyy", dense)
add_block_change("hessian_change", "∇²_yy g", "rho_xyy", "rho_yyy", dense)
