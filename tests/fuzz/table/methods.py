"""Methods of what the library returns, and classes that a user may make by hand."""

from functools import cache

import bilevel as bl
from bilevel.checks import prepare
from bilevel.solvers.rules import as_rule
from fuzz.call import Call, Later
from fuzz.valid import PROBLEM, SOLVER, X0, Y0, event, run_state


@cache
def sweep() -> bl.Sweep:
    return bl.sweep(SOLVER, X0, Y0, steps=1)


solver_state = Later(lambda: run_state().solver)

CALLS = [
    Call("bl.Sweep.__getitem__", lambda lane: sweep()[lane], {"lane": 0}, {"lane": "lane"}),
    Call(
        "bl.hooks.Event.last",
        lambda metric: event().last(metric),
        {"metric": "outer_value"},
        {"metric": "choice"},
    ),
    Call(
        "bl.hooks.Event.column",
        lambda metric: event().column(metric),
        {"metric": "outer_value"},
        {"metric": "choice"},
    ),
    Call("bl.Solver.init", SOLVER.init, {"x0": X0, "y0": Y0}, {"x0": "tree", "y0": "tree", "batch": "batch"}),
    Call("bl.Solver.step", SOLVER.step, {"state": solver_state}, {"state": "solver state", "batch": "batch"}),
    Call(
        "bl.Solver.warm_up",
        SOLVER.warm_up,
        {"state": solver_state},
        {"state": "solver state", "batch": "batch"},
    ),
    Call(
        "bilevel.checks.prepare",
        prepare,
        {"problem": PROBLEM, "x0": X0, "y0": Y0, "batch": None},
        {"problem": "problem", "x0": "tree", "y0": "tree", "batch": "batch"},
    ),
    Call("bilevel.solvers.rules.as_rule", as_rule, {"value": 0.1, "level": "inner"}, {"value": "rule"}),
]
