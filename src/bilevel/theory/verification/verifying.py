"""The paper's lemmas and theorems, checked on a run of the real solver."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.batch import Batch
from bilevel.checks import check_count, prepare
from bilevel.solvers.base import Solver
from bilevel.theory.constants import Constants
from bilevel.theory.estimation.estimated import Assumed, Estimated
from bilevel.theory.verification.judgement import judge
from bilevel.theory.verification.measurement import Run, measure
from bilevel.theory.verification.report import Report
from bilevel.theory.verification.single_loop import step_sizes
from bilevel.types import PyTree


def verify(
    solver: Solver,
    constants: Any,
    x0: PyTree,
    y0: PyTree,
    steps: int,
    data: Batch | None = None,
    solution: Callable[[PyTree], PyTree] | None = None,
) -> Report:
    """Runs `solver` and evaluates both sides of every lemma and theorem of the paper at every iteration.

    Args:
        solver: `bl.aid` or `bl.itd` with floats at every level: the paper's Algorithms 1 and 2.
        constants: a `Constants`: μ, L, M and ρ, declared or assumed (`Estimated.assume()`), as scalars.
        x0: where x starts, in float64.
        y0: where y starts, in float64.
        steps: how many iterations to run and judge.
        data: the whole data at every step; the theory is about deterministic gradients.
        solution: x ↦ y*(x) in closed form; left out, y* is solved for by Newton's method.

    Returns:
        A [`Report`][bilevel.theory.Report]: `report.ok`, `report.violations`, and a table when printed.
    """
    sizes, steps = step_sizes(solver), check_count(steps, "steps")
    _check(constants)
    x, y = prepare(solver.problem, x0, y0, data)
    _check_double(x, "x0")
    _check_double(y, "y0")
    run = solver.compiled(_measured, steps, solution)(x, y, data)
    _check_finite(run, sizes)
    return judge(run, solver, constants, _provenance(constants, run.dense is not None))


def _measured(
    solver: Solver,
    steps: int,
    solution: Callable[[PyTree], PyTree] | None,
    x: PyTree,
    y: PyTree,
    data: Batch | None,
) -> Run:
    return measure(solver, x, y, steps, data, solution)


def _check(constants: Any) -> None:
    if isinstance(constants, Estimated):
        raise TypeError(
            "these constants are estimated, not declared: pass constants.assume() to judge the run as if they held"
        )
    if not isinstance(constants, Constants):
        raise TypeError(f"constants must be a theory.Constants, not {type(constants).__name__}")
    if any(np.ndim(value) for value in (constants.mu, constants.L, constants.M, constants.rho)):
        raise ValueError("one run has one set of constants: pass scalars to theory.Constants, not arrays")


def _check_double(tree: PyTree, name: str) -> None:
    for leaf in jax.tree.leaves(tree):
        if leaf.dtype != jnp.float64:
            raise TypeError(
                f"{name} is {leaf.dtype}, but a reference to 1e-12 needs float64: call "
                'jax.config.update("jax_enable_x64", True) first and start from float64 arrays'
            )


def _check_finite(run: Any, sizes: dict[str, Any]) -> None:
    finite = np.isfinite(np.asarray(run.gradient)) & np.isfinite(np.asarray(run.estimate_error))
    if not finite.all():
        k = int(np.argmin(finite))
        raise ValueError(
            f"the run is not finite from iteration {k} on (step sizes {sizes}), so no inequality can be "
            "judged: take smaller step sizes, or fewer steps"
        )


def _provenance(constants: Constants, dense: bool) -> dict[str, str]:
    """By constant: its value, where it comes from, and how far the run can see whether it holds."""
    estimated = constants.estimated if isinstance(constants, Assumed) else frozenset()
    seen = {"mu": dense, "L": True, "M": True, "rho": dense}
    part = {"L": "" if dense else " for f only"}
    texts = {}
    for name, symbol in (("mu", "μ"), ("L", "L"), ("M", "M"), ("rho", "ρ")):
        source = "estimated, assumed to hold" if name in estimated else "declared"
        checked = "checked at the points visited" + part.get(name, "") if seen[name] else "unchecked"
        texts[symbol] = f"{getattr(constants, name):.4g} {source}; {checked}"
    return texts
