"""The two algorithms that the paper is about, recognised by the solver itself."""

from bilevel.solvers.adjoints.gradient_steps import OneStep
from bilevel.solvers.aid import AID
from bilevel.solvers.base import Solver
from bilevel.solvers.itd import ITD
from bilevel.solvers.rules import Descent, Rule
from bilevel.types import Number


def step_sizes(solver: Solver) -> dict[str, Number]:
    """α, η and β of single-loop AID (Algorithm 1), α and β of single-loop ITD (Algorithm 2).

    Any other solver is an error: the paper claims nothing about it.
    """
    rules = _rules(solver)
    sizes = {name: rule.step_size for name, rule in rules.items() if isinstance(rule, Descent)}
    if not rules or len(sizes) < len(rules):
        raise ValueError(
            "the paper's lemmas are about single-loop AID and ITD with plain gradient steps, and this "
            f"{solver.name} is not: make it with bl.aid(problem, inner=α, adjoint=η, outer=β) or "
            "bl.itd(problem, inner=α, outer=β), all of them floats and one step per level"
        )
    return sizes


def _rules(solver: Solver) -> dict[str, Rule]:
    """The rule of each level, or nothing if the solver is not one of the two or takes several steps on a level."""
    if isinstance(solver, AID) and solver.inner_steps == 1 and isinstance(solver.adjoint, OneStep):
        return {"alpha": solver.inner, "eta": solver.adjoint.rule, "beta": solver.outer}
    if isinstance(solver, ITD) and solver.lengths.steps == 1:
        return {"alpha": solver.inner, "beta": solver.outer}
    return {}
