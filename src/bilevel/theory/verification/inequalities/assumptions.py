"""Assumptions along the segments of a run, with three points inside each (`measurement`).

A violation here proves a constant wrong. The converse does not hold: a run visits few points of a region.
"""

import numpy as np

from bilevel.theory.verification.inequalities.claim import Claim, Hypothesis, Setting, Sides, dense
from bilevel.theory.verification.measurement import Run


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
