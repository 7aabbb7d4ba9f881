"""The assumptions where a run can see them: along its segments, with three points inside each (`segments`).

A violation here proves a constant wrong. The converse does not hold: a run sees a few points of a region.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bilevel.theory.verification.inequalities.claim import Claim, dense
from bilevel.theory.verification.measurement import Run


def everywhere(r: Run, quantity: str) -> np.ndarray:
    """A quantity on all pieces of the run, one row per iteration."""
    return np.concatenate([getattr(piece, quantity) for piece in (r.at_x, r.to_next, r.since_last)], axis=-1)


def _upper(quantity: Callable[..., Any], constant: str) -> Callable[..., Any]:
    def sides(r, s):
        seen = quantity(r)
        return seen, np.full_like(seen, getattr(s.constants, constant))

    return sides


def _strongly_convex(r, s):
    seen = everywhere(r, "curvature_low")
    return np.full_like(seen, s.constants.mu), seen


def _point_step(r):
    return np.hypot(everywhere(r, "x_step"), everywhere(r, "y_step"))


def _outer_smooth(r, s):
    change = np.hypot(everywhere(r, "outer_x_change"), everywhere(r, "outer_y_change"))
    return change, s.constants.L * _point_step(r)


def _second_derivatives(r, s):
    change = np.maximum(everywhere(r, "hessian_change"), everywhere(r, "cross_change"))
    return change, s.constants.rho * _point_step(r)


def _inner_slopes(r):
    return np.maximum(everywhere(r, "curvature_high"), everywhere(r, "cross"))


def _outer_slopes(r):
    return np.column_stack([r.outer_y, r.to_next.outer_y])


# As the paper states them: jointly in (x, y), except that ∇²_yy g and ∇²_xy g are bounded one by one.
ASSUMPTIONS = (
    Claim("Assumption 4.2: strong convexity (μ)", "μ ≤ λ_min ∇²_yy g", _strongly_convex, (dense,)),
    Claim(
        "Assumption 4.3: f's slope in y (M)", "‖∇_y f‖ ≤ M at ŷ_k and along y*(x)", _upper(_outer_slopes, "M")
    ),
    Claim("Assumption 4.4: ∇f is Lipschitz (L)", "‖∇f(z) − ∇f(z')‖ ≤ L‖z − z'‖", _outer_smooth),
    Claim(
        "Assumption 4.4: ∇_y g is Lipschitz (L)",
        "‖∇²_yy g‖, ‖∇²_xy g‖ ≤ L",
        _upper(_inner_slopes, "L"),
        (dense,),
    ),
    Claim(
        "Assumption 4.5: second derivatives (ρ)",
        "‖∇²_·y g(z) − ∇²_·y g(z')‖ ≤ ρ‖z − z'‖",
        _second_derivatives,
        (dense,),
    ),
)

# Only ITD's radius lemma (5.12) uses a bound on ∇_x f, so AID is not judged by it.
SLOPE_IN_X = Claim(
    "Assumption 4.3: f's slope in x (M)", "‖∇_x f‖ ≤ M at ŷ_k and y*_k", _upper(lambda r: r.outer_x, "M")
)


def _block_change(quantity: str, in_x: str, in_y: str) -> Callable[..., Any]:
    """‖change‖ ≤ in_x·‖x − x'‖ + in_y·‖y − y'‖."""

    def sides(r, s):
        x_step, y_step = everywhere(r, "x_step"), everywhere(r, "y_step")
        return everywhere(r, quantity), getattr(s.blocks, in_x) * x_step + getattr(s.blocks, in_y) * y_step

    return sides


def _changes(quantity: str, what: str, in_x: str, in_y: str, *needs) -> Claim:
    statement = f"‖{what}(z) − {what}(z')‖ ≤ {in_x}·‖x − x'‖ + {in_y}·‖y − y'‖"
    return Claim(
        f"Blocks: slope of {what} ({in_x}, {in_y})", statement, _block_change(quantity, in_x, in_y), needs
    )


def _norm(quantity: str, constant: str) -> Callable[..., Any]:
    return _upper(lambda r: everywhere(r, quantity), constant)


BLOCKWISE = (
    Claim("Blocks: strong convexity (mu)", "mu ≤ λ_min ∇²_yy g", _strongly_convex, (dense,)),
    Claim("Blocks: curvature of g (L_yy)", "‖∇²_yy g‖ ≤ L_yy", _norm("curvature_high", "L_yy"), (dense,)),
    Claim("Blocks: coupling in g (L_xy)", "‖∇²_xy g‖ ≤ L_xy", _norm("cross", "L_xy"), (dense,)),
    Claim(
        "Blocks: f's slope in y (M_y)", "‖∇_y f(x, y*(x))‖ ≤ M_y", _upper(lambda r: r.to_next.outer_y, "M_y")
    ),
    _changes("outer_x_change", "∇_x f", "f_xx", "f_xy"),
    _changes("outer_y_change", "∇_y f", "f_xy", "f_yy"),
    _changes("cross_change", "∇²_xy g", "rho_xxy", "rho_xyy", dense),
    _changes("hessian_change", "∇²_yy g", "rho_xyy", "rho_yyy", dense),
)
