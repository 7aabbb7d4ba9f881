"""The algorithms that certificates are about, recognized by the solver itself."""

from typing import Any, NamedTuple

from bilevel.solvers.adjoints.gradient_steps import OneStep, Steps
from bilevel.solvers.algorithms.aid import AID
from bilevel.solvers.algorithms.itd import ITD
from bilevel.solvers.algorithms.soba import SOBA
from bilevel.solvers.base import Solver
from bilevel.solvers.rules import Descent
from bilevel.types import Number


class Algorithm(NamedTuple):
    """AID (the paper's Algorithm 1 if both counts are one), single-loop ITD (Algorithm 2) or SOBA."""

    method: str
    sizes: dict[str, Number]  # alpha, eta (not for ITD) and beta
    inner_steps: int = 1
    adjoint_steps: int = 1


def recognize(solver: Solver) -> Algorithm:
    """The algorithm that `solver` is. Any other is an error: nothing is claimed about it."""
    method, rules, *counts = _parts(solver)
    sizes = {name: rule.step_size for name, rule in rules.items() if isinstance(rule, Descent)}
    if not rules or len(sizes) < len(rules) or solver.problem.prox is not None:
        raise ValueError(
            "the lemmas and certificates are about AID, single-loop ITD and SOBA with plain gradient steps, and this "
            f"{solver.name} is not: make it with bl.aid(problem, inner=α, adjoint=η, outer=β), "
            "bl.itd(problem, inner=α, outer=β) or bl.soba(problem, inner=α, adjoint=η, outer=β), all of them floats "
            "and the problem without prox; AID may take several steps (inner_steps=N, adjoint=bl.adjoints.steps(η, Q))"
        )
    return Algorithm(method, sizes, *counts)


def _parts(solver: Solver) -> tuple[Any, ...]:
    """The method, the rule of each level, and how many steps of it are taken."""
    if isinstance(solver, AID) and isinstance(solver.adjoint, OneStep | Steps):
        count = solver.adjoint.count if isinstance(solver.adjoint, Steps) else 1
        rules = {"alpha": solver.inner, "eta": solver.adjoint.rule, "beta": solver.outer}
        return "AID", rules, solver.inner_steps, count
    if isinstance(solver, SOBA) and isinstance(solver.adjoint, OneStep):
        return "SOBA", {"alpha": solver.inner, "eta": solver.adjoint.rule, "beta": solver.outer}
    if isinstance(solver, ITD) and solver.lengths.steps == 1:
        return "ITD", {"alpha": solver.inner, "beta": solver.outer}
    return "", {}
