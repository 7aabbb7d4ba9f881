"""The paper's lemmas and theorems, and every certificate, checked on a run of the real solver."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.batch import Batch
from bilevel.checks import check_count, prepare
from bilevel.solvers.base import Solver, check_solver
from bilevel.theory.blocks import Blocks
from bilevel.theory.constants import Constants
from bilevel.theory.verification.algorithm import recognize
from bilevel.theory.verification.given import check_constants, check_solution, names_of
from bilevel.theory.verification.judgment import judge
from bilevel.theory.verification.measurement import Run, measure
from bilevel.theory.verification.report import Report
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
    """Runs `solver` and evaluates both sides of every lemma, theorem and certificate at every iteration.

    Args:
        solver: `bl.aid`, `bl.itd` or `bl.soba` with floats at every level. For the paper's Algorithms 1 and 2 every
            lemma is judged; for AID with several steps and for SOBA, what `theory.star` says.
        constants: a `Constants`: μ, L, M and ρ, declared or assumed (`Estimated.assume()`), as scalars; or `Blocks`,
            to judge what `theory.star` says of them.
        x0: where x starts, in float64.
        y0: where y starts, in float64.
        steps: how many iterations to run and judge.
        data: the whole data at every step; the theory is about deterministic gradients.
        solution: x ↦ y*(x) in closed form; left out, y* is solved for by Newton's method.

    Returns:
        A `bl.theory.Report`: `report.ok`, `report.violations`, and a table when printed.
    """
    sizes, steps = recognize(check_solver(solver)).sizes, check_count(steps, "steps")
    check_constants(constants)
    x, y = prepare(solver.problem, x0, y0, data)
    check_solution(solution, x, y)
    _check_double(x, "x0")
    _check_double(y, "y0")
    run = solver.compiled(_measured, steps, solution)(x, y, data)
    _check_finite(run, sizes)
    return judge(run, solver, constants, _provenance(constants, run.at_x.cross is not None))


def _measured(
    solver: Solver,
    steps: int,
    solution: Callable[[PyTree], PyTree] | None,
    x: PyTree,
    y: PyTree,
    data: Batch | None,
) -> Run:
    return measure(solver, x, y, steps, data, solution)


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


def _provenance(constants: Constants | Blocks, dense: bool) -> dict[str, str]:
    """By constant: its value, where it comes from, and how far the run can see whether it holds."""
    estimated = getattr(constants, "estimated", frozenset())
    texts = {}
    for name in names_of(constants):
        source = "estimated, assumed to hold" if name in estimated else "declared"
        unseen = not dense and name.startswith(("mu", "L_", "rho"))
        checked = (
            "unchecked"
            if unseen
            else "checked along the run" + (" for f only" if name == "L" and not dense else "")
        )
        texts[SYMBOLS.get(name, name)] = f"{getattr(constants, name):.4g} {source}; {checked}"
    return texts


SYMBOLS = {"mu": "μ", "rho": "ρ"}
