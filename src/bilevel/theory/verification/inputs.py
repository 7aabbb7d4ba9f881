"""Checked inputs of a verification: the solver's algorithm, the constants and the inner solution."""

from dataclasses import fields
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel.checks import check_callable, signature
from bilevel.solvers.adjoints.gradient_steps import OneStep, Steps
from bilevel.solvers.algorithms.aid import AID
from bilevel.solvers.algorithms.itd import ITD
from bilevel.solvers.algorithms.soba import SOBA
from bilevel.solvers.base import Solver
from bilevel.solvers.rules import Descent
from bilevel.theory.constants import Blocks, Constants
from bilevel.theory.estimation.estimates import Estimated
from bilevel.types import Number, PyTree
from bilevel.words import described


class Algorithm(NamedTuple):
    """AID (the paper's Algorithm 1 if both counts are one), single-loop ITD (Algorithm 2) or SOBA."""

    method: str
    sizes: dict[str, Number]  # alpha, eta (not for ITD) and beta
    inner_steps: int = 1
    adjoint_steps: int = 1


def recognize(solver: Solver) -> Algorithm:
    """Return the algorithm of `solver`, or raise if no lemma or certificate covers it."""
    method, rules, counts = "", {}, ()
    if isinstance(solver, AID) and isinstance(solver.adjoint, OneStep | Steps):
        method, rules = "AID", {"alpha": solver.inner, "eta": solver.adjoint.rule, "beta": solver.outer}
        counts = solver.inner_steps, solver.adjoint.count if isinstance(solver.adjoint, Steps) else 1
    elif isinstance(solver, SOBA) and isinstance(solver.adjoint, OneStep):
        method, rules = "SOBA", {"alpha": solver.inner, "eta": solver.adjoint.rule, "beta": solver.outer}
    elif isinstance(solver, ITD) and solver.lengths.steps == 1:
        method, rules = "ITD", {"alpha": solver.inner, "beta": solver.outer}
    sizes = {name: rule.step_size for name, rule in rules.items() if isinstance(rule, Descent)}
    if not rules or len(sizes) < len(rules) or solver.problem.prox is not None:
        raise ValueError(
            "the lemmas and certificates are about AID, single-loop ITD and SOBA with plain gradient steps, and this "
            f"{solver.name} is not: make it with bl.aid(problem, inner=α, adjoint=η, outer=β), "
            "bl.itd(problem, inner=α, outer=β) or bl.soba(problem, inner=α, adjoint=η, outer=β), all of them floats "
            "and the problem without prox; AID may take several steps (inner_steps=N, adjoint=bl.adjoints.steps(η, Q))"
        )
    return Algorithm(method, sizes, *counts)


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


def check_solution(solution: Any, x: PyTree, y: PyTree) -> None:
    """Raise unless `solution` is None or a function from x to a tree like y."""
    if solution is None:
        return
    check_callable(solution, "solution", 1, "a function from x to y*(x)", "problem.inner_solution")
    try:
        found = jax.eval_shape(solution, x)
    except Exception as error:
        raise TypeError(
            f"solution must return y*(x), an array or a tree like y, at x, but raises: {error}"
        ) from error
    if signature(found) != signature(y):
        raise TypeError(f"solution must return a tree like y, {described(y)}, but returns {described(found)}")
