"""Both sides of every claim on a measured run, and the verdict on each."""

from typing import Any

import jax
import numpy as np

from bilevel.solvers.aid import AID
from bilevel.solvers.base import Solver
from bilevel.theory.constants import Constants
from bilevel.theory.verification.inequalities.aid_lemmas import ABOUT_AID
from bilevel.theory.verification.inequalities.assumptions import ASSUMPTIONS, SLOPE_IN_X
from bilevel.theory.verification.inequalities.claim import Claim, Setting
from bilevel.theory.verification.inequalities.itd_lemmas import ABOUT_ITD
from bilevel.theory.verification.inequalities.phi import ABOUT_PHI
from bilevel.theory.verification.measurement import Dense, Run
from bilevel.theory.verification.report import Report, Row, Verdict
from bilevel.theory.verification.single_loop import step_sizes

TOLERANCE = 1e-9  # of the right side, for rounding in the inequality itself
ULPS = 64  # of the quantities that a norm is the difference of


def judge(run: Run, solver: Solver, constants: Constants, hypotheses: dict[str, str] | None = None) -> Report:
    """The report on a run of `solver` that [`measure`][bilevel.theory.measure] took, for scalar constants.

    Args:
        run: the measured norms.
        solver: the single-loop AID or ITD that took the steps; its kind says which theorem applies.
        constants: the μ, L, M and ρ to judge it by.
        hypotheses: by constant, a line for the report on where it comes from.

    Measured norms carry the error of the reference (`uncertainty`). An inequality counts as violated where its
    left side from the norms made smaller by that error exceeds its right side from the norms made larger, by
    more than `TOLERANCE`; every claim is written so that both sides grow with the norms.
    """
    run = jax.tree.map(np.asarray, run)
    sizes = {name: float(value) for name, value in step_sizes(solver).items()}
    about = ABOUT_AID if isinstance(solver, AID) else (SLOPE_IN_X, *ABOUT_ITD)
    setting = Setting(constants, sizes["alpha"], sizes["beta"], sizes.get("eta"), float(run.warm_error[0]))
    error = uncertainty(run, constants)
    low, high = _moved(run, error, -1), _moved(run, error, 1)
    rows = tuple(_row(claim, setting, run, low, high) for claim in (*ASSUMPTIONS, *about, *ABOUT_PHI))
    return Report(
        method=solver.name,
        steps=len(run.gradient),
        step_sizes={symbol: sizes[name] for name, symbol in SYMBOLS.items() if name in sizes},
        hypotheses=hypotheses or {},
        reference_residual=float(max(run.inner_residual.max(), run.adjoint_residual.max())),
        tolerance=TOLERANCE,
        rows=rows,
    )


SYMBOLS = {"alpha": "α", "eta": "η", "beta": "β"}


def uncertainty(run: Run, constants: Constants) -> dict[str, Any]:
    """How far each measured norm may be off: the reference's residuals over μ, and rounding.

    An error δ_y in y* and δ_v in v* moves ∇Φ by at most (L + ρM/μ)δ_y + Lδ_v, and Φ by ‖∇_y f‖δ_y.
    """
    k, eps = constants, ULPS * np.finfo(float).eps
    x, y, v = (run.sizes[name].max() for name in ("x", "y", "v"))
    d_y = run.inner_residual.max() / k.mu + eps * y
    d_v = run.adjoint_residual.max() / k.mu + eps * v
    d_gradient = (k.L + k.rho * k.M / k.mu) * d_y + k.L * d_v + eps * (run.outer_x.max() + k.L * v)
    d_value = run.outer_y.max() * d_y + eps * np.abs(run.value).max()
    return {
        "y_error": d_y,
        "warm_error": d_y,
        "y_step": eps * y,
        "v_error": d_v,
        "v_star_error": d_v,
        "x_step": eps * x,
        "estimate_error": d_gradient,
        "gradient": d_gradient,
        "gradient_change": 2 * d_gradient,
        "value": d_value,
        "next_value": d_value,
        "descent": 2 * d_value,
        "outer_change": eps * np.hypot(run.outer_x, run.outer_y).max(),
        "point_step": eps * np.hypot(x, y),
    }


def _moved(run: Run, error: dict[str, Any], sign: int) -> Run:
    """The run with each norm at one end of its interval; only the values of Φ may be negative."""
    moved = {name: getattr(run, name) + sign * delta for name, delta in error.items()}
    moved = {name: norm if name.endswith("value") else np.maximum(norm, 0) for name, norm in moved.items()}
    return run._replace(**moved, dense=_moved_dense(run.dense, sign))


def _moved_dense(dense: Dense | None, sign: int) -> Dense | None:
    """Differences of matrices carry the rounding of the matrices."""
    if dense is None:
        return None
    eps = sign * ULPS * np.finfo(float).eps
    shifts = {
        "hessian_change": eps * dense.curvature_high.max(),
        "cross_change": eps * dense.cross.max(),
        "jacobian_error": eps * dense.jacobian.max(),
        "jacobian": eps * dense.jacobian.max(),
    }
    return dense._replace(
        **{name: np.maximum(getattr(dense, name) + shift, 0) for name, shift in shifts.items()}
    )


def _row(claim: Claim, setting: Setting, run: Run, low: Run, high: Run) -> Row:
    for needed in claim.needs:
        if (reason := needed(run, setting)) is not None:
            return Row(claim.name, claim.statement, Verdict.NOT_APPLICABLE, reason)
    lhs, rhs = claim.sides(run, setting)
    if len(lhs) == 0:
        return Row(claim.name, claim.statement, Verdict.NOT_APPLICABLE, "needs at least two iterations")
    # Written so that a NaN on either side counts as a violation.
    kept = claim.sides(low, setting)[0] <= claim.sides(high, setting)[1] * (1 + TOLERANCE)
    broken = np.flatnonzero(~kept)
    slack = rhs - lhs
    relative = slack / np.maximum(np.abs(rhs), np.finfo(float).tiny)
    worst = int(np.argmin(np.where(np.isnan(relative), -np.inf, relative)))
    return Row(
        claim.name,
        claim.statement,
        Verdict.VIOLATED if len(broken) else Verdict.HOLDS,
        slack=float(slack.min()),
        relative_slack=float(relative[worst]),
        at=claim.first + worst,
        first_violation=claim.first + int(broken[0]) if len(broken) else None,
    )
