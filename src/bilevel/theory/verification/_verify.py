"""`verify` and `judge`: both sides of every lemma, theorem and certificate on a run of the real solver."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.batch import Batch
from bilevel.checks import check_count, check_kind, prepare
from bilevel.solvers.base import Solver, check_solver
from bilevel.theory.constants import Blocks, Constants
from bilevel.theory.estimation.estimates import Estimated
from bilevel.theory.verification.inequalities import claims_about
from bilevel.theory.verification.inequalities.claims import Claim, Setting
from bilevel.theory.verification.measurement import Piece, Run, measure, recognize
from bilevel.theory.verification.reference import check_solution
from bilevel.theory.verification.report import Report, Row, Verdict
from bilevel.types import PyTree

TOLERANCE = 1e-9  # share of the right side, for rounding in the inequality itself
ROUNDING = 64 * np.finfo(float).eps  # of a difference, as a share of its terms
SYMBOLS = {"alpha": "α", "eta": "η", "beta": "β", "mu": "μ", "rho": "ρ"}


def verify(
    solver: Solver,
    constants: Any,
    x0: PyTree,
    y0: PyTree,
    steps: int,
    data: Batch | None = None,
    solution: Callable[[PyTree], PyTree] | None = None,
) -> Report:
    """Run `solver` and evaluate both sides of every lemma, theorem and certificate at every iteration.

    Args:
        solver: `bl.aid`, `bl.itd` or `bl.soba` with floats at every level. For the paper's Algorithms 1 and 2 every
            lemma is judged; for AID with several steps and for SOBA, the claims of `theory.star`.
        constants: a `Constants`: μ, L, M and ρ, declared or assumed (`Estimated.assume()`), as scalars; or `Blocks`,
            for the claims of `theory.star` about them.
        x0: the first x, in float64.
        y0: the first y, in float64.
        steps: the number of iterations to run and judge.
        data: the whole data at every step; the theory is about deterministic gradients.
        solution: x ↦ y*(x) in closed form; without it, Newton's method computes y*.

    Returns:
        A `bl.theory.Report`: `report.ok`, `report.violations`, and a table when printed.
    """
    sizes, steps = recognize(check_solver(solver)).sizes, check_count(steps, "steps")
    check_constants(constants)
    x, y = prepare(solver.problem, x0, y0, data)
    check_solution(solution, x, y)
    _check_double(x0=x, y0=y)
    run = solver.compiled(_measured, steps, solution)(x, y, data)
    _check_finite(run, sizes)
    return judge(run, solver, constants, _provenance(constants, run.at_x.cross is not None))


def _measured(solver: Solver, steps: int, solution: Any, x: PyTree, y: PyTree, data: Batch | None) -> Run:
    return measure(solver, x, y, steps, data, solution)


def _check_double(**trees: PyTree) -> None:
    for name, leaf in ((name, leaf) for name, tree in trees.items() for leaf in jax.tree.leaves(tree)):
        if leaf.dtype != jnp.float64:
            raise TypeError(
                f"{name} is {leaf.dtype}, but a reference to 1e-12 needs float64: call "
                'jax.config.update("jax_enable_x64", True) first and start from float64 arrays'
            )


def _check_finite(run: Run, sizes: dict[str, Any]) -> None:
    finite = np.isfinite(np.asarray(run.gradient)) & np.isfinite(np.asarray(run.estimate_error))
    if not finite.all():
        k = int(np.argmin(finite))
        raise ValueError(
            f"the run is not finite from iteration {k} on (step sizes {sizes}), so no inequality can be "
            "judged: take smaller step sizes, or fewer steps"
        )


def _provenance(constants: Constants | Blocks, dense: bool) -> dict[str, str]:
    """Return the value of each constant, its origin, and whether the run can check it."""
    estimated = getattr(constants, "estimated", frozenset())
    texts = {}
    for name in names_of(constants):
        source = "estimated, assumed to hold" if name in estimated else "declared"
        checked = "checked along the run" + (" for f only" if name == "L" and not dense else "")
        if not dense and name.startswith(("mu", "L_", "rho")):
            checked = "unchecked"
        texts[SYMBOLS.get(name, name)] = f"{getattr(constants, name):.4g} {source}; {checked}"
    return texts


def judge(
    run: Run, solver: Solver, constants: Constants | Blocks, hypotheses: dict[str, str] | None = None
) -> Report:
    """Return the report on a run of `solver` that `bl.theory.measure` took, for scalar constants.

    Args:
        run: the measured norms.
        solver: the solver of the run, which decides which lemmas and certificates apply.
        constants: the μ, L, M and ρ to judge it by; or blocks, for the claims of `theory.star` about them.
        hypotheses: by constant, a line for the report about its origin.

    Measured norms have the error of the reference (`uncertainty`). Both sides of every claim grow with the
    norms. An inequality counts as violated if its left side, with norms reduced by that error, exceeds its
    right side, with norms increased by it, by more than `TOLERANCE`.
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
        step_sizes={SYMBOLS[name]: sizes[name] for name in ("alpha", "eta", "beta") if name in sizes},
        hypotheses=hypotheses or {},
        reference_residual=float(max(run.inner_residual.max(), run.adjoint_residual.max())),
        tolerance=TOLERANCE,
        rows=tuple(_row(claim, setting, run, low, high) for claim in claims_about(setting)),
    )


def uncertainty(run: Run, k: Blocks) -> dict[str, Any]:
    """Return the error bound of each measured norm: the reference's residuals over μ, and rounding.

    An error δ_y in y* and δ_v in v* moves ∇Φ by at most Λ_xy·δ_y + L_xy·δ_v, and Φ by ‖∇_y f‖δ_y.
    """
    eps = ROUNDING
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
    """Return the run with each norm at one end of its interval. Only the values of Φ may be negative."""
    moved = {name: getattr(run, name) + sign * delta for name, delta in error.items()}
    moved = {name: norm if name.endswith("value") else np.maximum(norm, 0) for name, norm in moved.items()}
    pieces = {name: _moved_piece(getattr(run, name), run, sign) for name in ("at_x", "to_next", "since_last")}
    eps = sign * ROUNDING
    if run.jacobian is not None:
        scale = eps * run.jacobian.max()
        moved |= {name: np.maximum(getattr(run, name) + scale, 0) for name in ("jacobian", "jacobian_error")}
    return run._replace(**moved, **pieces)


def _moved_piece(piece: Piece, run: Run, sign: int) -> Piece:
    """Return a piece with each norm at one end of its interval, with the rounding of differences."""
    eps = sign * ROUNDING
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
    row = partial(Row, claim.name, claim.statement)
    for needed in claim.needs:
        if (reason := needed(run, setting)) is not None:
            return row(Verdict.NOT_APPLICABLE, reason)
    lhs, rhs = np.broadcast_arrays(claim.sides(low, setting)[0], claim.sides(high, setting)[1])
    if len(lhs) == 0:
        return row(Verdict.NOT_APPLICABLE, "needs at least two iterations")
    by_iteration = lambda values: values.reshape(len(values), -1)
    # Written so that a NaN on either side counts as a violation.
    broken = np.flatnonzero(by_iteration(~(lhs <= rhs * (1 + TOLERANCE))).any(axis=1))
    slack = rhs - lhs
    relative = by_iteration(_share(slack, rhs)).min(axis=1)
    worst = int(np.argmin(relative))
    return row(
        Verdict.VIOLATED if len(broken) else Verdict.HOLDS,
        slack=float(slack.min()),
        relative_slack=float(relative[worst]),
        at=claim.first + worst,
        first_violation=claim.first + int(broken[0]) if len(broken) else None,
    )


def _share(slack: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return slack/rhs: 1 where rhs is infinite, −∞ where rhs is zero or a side is not a number."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        share = np.where(slack == 0, 0.0, slack / np.abs(rhs))
    return np.where(np.isposinf(rhs), 1.0, np.where(np.isnan(share), -np.inf, share))


def check_constants(constants: Any) -> None:
    if isinstance(constants, Estimated):
        raise TypeError(
            "these constants are estimated, not declared: pass constants.assume() to judge the run as if they held"
        )
    if not isinstance(constants, Constants | Blocks):
        raise TypeError(
            f"constants must be a theory.Constants or theory.Blocks, not {type(constants).__name__}: pass e.g. "
            "theory.Constants(mu, L, M, rho)"
        )
    if any(np.ndim(getattr(constants, name)) for name in names_of(constants)):
        raise ValueError("one run has one set of constants: pass scalars to theory.Constants, not arrays")


def names_of(constants: Constants | Blocks) -> tuple[str, ...]:
    """Return the names of the constants, without the further fields of assumed ones."""
    return tuple(field.name for field in fields(Blocks if isinstance(constants, Blocks) else Constants))
