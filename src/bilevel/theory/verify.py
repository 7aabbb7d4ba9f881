"""The paper's lemmas and theorems, checked on a run of the real solver."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.checks import check_batch, check_count, prepare
from bilevel.problem import Batch, Problem
from bilevel.solvers.base import Solver
from bilevel.theory.constants import Constants
from bilevel.theory.estimate import Assumed, Estimated
from bilevel.theory.judge import judge
from bilevel.theory.measure import measure
from bilevel.theory.report import Report

PyTree = Any


def verify(
    problem: Problem,
    solver: Solver,
    constants: Any,
    x0: PyTree,
    y0: PyTree,
    steps: int,
    data: Batch | None = None,
    reference: Callable[[PyTree], PyTree] | None = None,
) -> Report:
    """Runs `solver` and evaluates both sides of every lemma and theorem of the paper at every iteration.

    Args:
        problem: the problem the solver was made for.
        solver: `bl.aid` or `bl.itd` with floats at every level: the paper's Algorithms 1 and 2.
        constants: a `Constants`: μ, L, M and ρ, declared or assumed (`Estimated.assume()`), as scalars.
        x0, y0: where to start, in float64.
        steps: how many iterations to run and judge.
        data: the whole data at every step; the theory is about deterministic gradients.
        reference: x ↦ y*(x) in closed form; left out, y* is solved for by Newton's method.

    Returns:
        A [`Report`][bilevel.theory.Report]: `report.ok`, `report.violations`, and a table when printed.
    """
    _check(problem, solver, constants, data)
    steps = check_count(steps, "steps")
    x, y = prepare(problem, x0, y0, data)
    _check_double(x, "x0")
    _check_double(y, "y0")
    run = _measure(solver, x, y, steps, data, reference)
    _check_finite(run, solver)
    return judge(run, constants, solver.step_sizes, _provenance(constants, run.dense is not None))


_measure = jax.jit(measure, static_argnames=("solver", "steps", "solution"))


def _check(problem: Problem, solver: Solver, constants: Any, data: Any) -> None:
    if solver.problem is not problem:
        raise ValueError(
            "the solver was made for another problem: pass solver.problem, or make it for this one"
        )
    if not solver.step_sizes:
        raise ValueError(
            "the paper's lemmas are about single-loop AID and ITD with plain gradient steps, and this "
            f"{solver.name} is not: make it with bl.aid(problem, inner=α, adjoint=η, outer=β) or "
            "bl.itd(problem, inner=α, outer=β), all of them floats and one step per level"
        )
    if isinstance(constants, Estimated):
        raise TypeError(
            "these constants are estimated, not declared: pass constants.assume() to judge the run as if they held"
        )
    if not isinstance(constants, Constants):
        raise TypeError(f"constants must be a theory.Constants, not {type(constants).__name__}")
    if any(np.ndim(value) for value in (constants.mu, constants.L, constants.M, constants.rho)):
        raise ValueError("one run has one set of constants: pass scalars to theory.Constants, not arrays")
    check_batch(problem, data)


def _check_double(tree: PyTree, name: str) -> None:
    for leaf in jax.tree.leaves(tree):
        if leaf.dtype != jnp.float64:
            raise TypeError(
                f"{name} is {leaf.dtype}, but a reference to 1e-12 needs float64: call "
                'jax.config.update("jax_enable_x64", True) first and start from float64 arrays'
            )


def _check_finite(run: Any, solver: Solver) -> None:
    finite = np.isfinite(np.asarray(run.gradient)) & np.isfinite(np.asarray(run.estimate_error))
    if not finite.all():
        k = int(np.argmin(finite))
        raise ValueError(
            f"the run is not finite from iteration {k} on (step sizes {solver.step_sizes}), so no inequality can be "
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
