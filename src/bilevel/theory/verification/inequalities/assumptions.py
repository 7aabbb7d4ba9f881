"""The paper's assumptions where a run can see them: at its own points and between neighbours.

A violation here proves a constant wrong. The converse does not hold: a run visits a few points of a region.
"""

import numpy as np

from bilevel.theory.verification.inequalities.claim import Claim, dense


def _strongly_convex(r, s):
    return np.full_like(r.y_error, s.constants.mu), r.dense.curvature_low


def _inner_slope(r, s):
    return r.outer_y, np.full_like(r.outer_y, s.constants.M)


def _outer_slope(r, s):
    return r.outer_x, np.full_like(r.outer_x, s.constants.M)


def _outer_smooth(r, s):
    return r.outer_change[1:], s.constants.L * r.point_step[1:]


def _inner_smooth(r, s):
    return np.maximum(r.dense.curvature_high, r.dense.cross), np.full_like(r.y_error, s.constants.L)


def _second_derivatives(r, s):
    change = np.maximum(r.dense.hessian_change, r.dense.cross_change)
    return change[1:], s.constants.rho * r.point_step[1:]


ASSUMPTIONS = (
    Claim("Assumption 4.2: strong convexity (μ)", "μ ≤ λ_min ∇²_yy g(x_k, ŷ_k)", _strongly_convex, (dense,)),
    Claim("Assumption 4.3: f's slope in y (M)", "‖∇_y f‖ ≤ M at ŷ_k and y*_k", _inner_slope),
    Claim(
        "Assumption 4.4: ∇f is Lipschitz (L)",
        "‖∇f(z_k) − ∇f(z_{k−1})‖ ≤ L‖z_k − z_{k−1}‖",
        _outer_smooth,
        first=1,
    ),
    Claim(
        "Assumption 4.4: ∇_y g is Lipschitz (L)",
        "‖∇²_yy g‖, ‖∇²_xy g‖ ≤ L at (x_k, ŷ_k)",
        _inner_smooth,
        (dense,),
    ),
    Claim(
        "Assumption 4.5: second derivatives (ρ)",
        "‖∇²_·y g(z_k) − ∇²_·y g(z_{k−1})‖ ≤ ρ‖z_k − z_{k−1}‖",
        _second_derivatives,
        (dense,),
        first=1,
    ),
)

# Only ITD's radius lemma (5.12) uses a bound on ∇_x f, so AID is not judged by it.
SLOPE_IN_X = Claim("Assumption 4.3: f's slope in x (M)", "‖∇_x f‖ ≤ M at ŷ_k and y*_k", _outer_slope)
