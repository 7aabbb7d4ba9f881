"""Both sides of every claim on a measured run, and the verdict on each."""

from typing import Any

import jax
import numpy as np

from bilevel.checks import check_kind
from bilevel.solvers.base import Solver, check_solver
from bilevel.theory.blocks import Blocks
from bilevel.theory.constants import Constants
from bilevel.theory.verification.algorithm import recognize
from bilevel.theory.verification.given import check_constants
from bilevel.theory.verification.inequalities.applicable import claims_about
from bilevel.theory.verification.inequalities.claim import Claim, Setting
from bilevel.theory.verification.measurement import Run
from bilevel.theory.verification.report import Report, Row, Verdict
from bilevel.theory.verification.segments import Along

TOLERANCE = 1e-9  # of the right side, for rounding in the inequality itself
ULPS = 64  # of the quantities that a norm is the difference of


def judge(
    run: Run, solver: Solver, constants: Constants | Blocks, hypotheses: dict[str, str] | None = None
) -> Report:
    """The report on a run of `solver` that `bl.theory.measure` took, for scalar constants.

    Args:
        run: the measured norms.
        solver: what took the steps; its kind says which lemmas and certificates apply.
        constants: the μ, L, M and ρ to judge it by; or blocks, for what `theory.star` says of them.
        hypotheses: by constant, a line for the report on where it comes from.

    Measured norms carry the error of the reference (`uncertainty`). An inequality counts as violated where its
    left side from the norms made smaller by that error exceeds its right side from the norms made larger, by
    more than `TOLERANCE`; every claim is written so that both sides grow with the norms.
    """
    check_kind(run, Run, "run", "a theory.Run", "pass what theory.measure(solver, x0, y0, steps) returns")
    check_constants(constants)
    check_kind(hypotheses, dict | None, "hypotheses", "a dict of sentences by constant", "or leave it out")
    method, given, *counts = recognize(check_solver(solver))
    run = jax.tree.map(np.asarray, run)
    sizes = {name: float(value) for name, value in given.items()}
    start = float(run.warm_error[0])
    setting = Setting(method, constants, sizes["alpha"], sizes["beta"], sizes.get("eta"), start, *counts)
    error = uncertainty(run, setting.blocks)
    low, high = _moved(run, error, -1), _moved(run, error, 1)
    return Report(
        method=solver.name,
        steps=len(run.gradient),
        step_sizes={symbol: sizes[name] for name, symbol in SYMBOLS.items() if name in sizes},
        hypotheses=hypotheses or {},
        reference_residual=float(max(run.inner_residual.max(), run.adjoint_residual.max())),
        tolerance=TOLERANCE,
        rows=tuple(_row(claim, setting, run, low, high) for claim in claims_about(setting)),
    )


SYMBOLS = {"alpha": "α", "eta": "η", "beta": "β"}


def uncertainty(run: Run, k: Blocks) -> dict[str, Any]:
    """How far each measured norm may be off: the reference's residuals over μ, and rounding.

    An error δ_y in y* and δ_v in v* moves ∇Φ by at most Λ_xy·δ_y + L_xy·δ_v, and Φ by ‖∇_y f‖δ_y.
    """
    eps = ULPS * np.finfo(float).eps
    x, y, v = (run.sizes[name].max() for name in ("x", "y", "v"))
    d_y = run.inner_residual.max() / k.mu + eps * y
    d_v = (run.adjoint_residual.max() + k.Lambda_yy * d_y) / k.mu + eps * v
    d_gradient = k.Lambda_xy * d_y + k.L_xy * d_v + eps * (run.outer_x.max() + k.L_xy * v)
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
    }


def _moved(run: Run, error: dict[str, Any], sign: int) -> Run:
    """The run with each norm at one end of its interval; only the values of Φ may be negative."""
    moved = {name: getattr(run, name) + sign * delta for name, delta in error.items()}
    moved = {name: norm if name.endswith("value") else np.maximum(norm, 0) for name, norm in moved.items()}
    pieces = {name: _moved_piece(getattr(run, name), run, sign) for name in ("at_x", "to_next", "since_last")}
    eps = sign * ULPS * np.finfo(float).eps
    if run.jacobian is not None:
        scale = eps * run.jacobian.max()
        moved |= {name: np.maximum(getattr(run, name) + scale, 0) for name in ("jacobian", "jacobian_error")}
    return run._replace(**moved, **pieces)


def _moved_piece(piece: Along, run: Run, sign: int) -> Along:
    """Differences of points, gradients and matrices carry the rounding of what is subtracted."""
    eps = sign * ULPS * np.finfo(float).eps
    x, y = run.sizes["x"].max(), (run.sizes["y"] + run.y_error + run.warm_error).max()
    outer = np.hypot(run.outer_x, run.outer_y).max()
    scales = {"x_step": x, "y_step": y, "outer_x_change": outer, "outer_y_change": outer}
    if piece.cross is not None:
        high = piece.curvature_high.max()
        scales |= {"hessian_change": high, "cross_change": piece.cross.max()}
        piece = piece._replace(curvature_low=piece.curvature_low + eps * high)  # it may be negative
    return piece._replace(
        **{name: np.maximum(getattr(piece, name) + eps * scale, 0) for name, scale in scales.items()}
    )


def _row(claim: Claim, setting: Setting, run: Run, low: Run, high: Run) -> Row:
    for needed in claim.needs:
        if (reason := needed(run, setting)) is not None:
            return Row(claim.name, claim.statement, Verdict.NOT_APPLICABLE, reason)
    lhs, rhs = claim.sides(low, setting)[0], claim.sides(high, setting)[1]
    if len(lhs) == 0:
        return Row(claim.name, claim.statement, Verdict.NOT_APPLICABLE, "needs at least two iterations")
    # Written so that a NaN on either side counts as a violation.
    broken = np.flatnonzero(_by_iteration(~(lhs <= rhs * (1 + TOLERANCE))).any(axis=1))
    slack = rhs - lhs
    relative = _by_iteration(_share(slack, rhs)).min(axis=1)
    worst = int(np.argmin(relative))
    return Row(
        claim.name,
        claim.statement,
        Verdict.VIOLATED if len(broken) else Verdict.HOLDS,
        slack=float(slack.min()),
        relative_slack=float(relative[worst]),
        at=claim.first + worst,
        first_violation=claim.first + int(broken[0]) if len(broken) else None,
    )


def _by_iteration(values: np.ndarray) -> np.ndarray:
    """One row per iteration, whether a claim has one entry for each or one for each of several points."""
    return values.reshape(len(values), -1)


def _share(slack: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """slack/rhs: 1 where nothing is claimed, −∞ where zero was, or where a side is not a number."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        share = np.where(slack == 0, 0.0, slack / np.abs(rhs))
    return np.where(np.isposinf(rhs), 1.0, np.where(np.isnan(share), -np.inf, share))
