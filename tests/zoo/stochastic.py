"""Methods whose estimates remember earlier batches. (On the full batch: their memory has tests of its own.)"""

import bilevel as bl
from zoo.table import Row

PROBLEMS = "quadratic", "trees"
ROWS = [
    Row("saba", lambda problem, L: bl.saba(problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L), PROBLEMS),
    Row(
        "srba",
        lambda problem, L: bl.solvers.srba(problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L, period=2),
        PROBLEMS,
    ),
    Row(
        "sustain",
        lambda problem, L: bl.solvers.sustain(
            problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L, products=4, momentum=0.3
        ),
        PROBLEMS,
    ),
    Row(
        "mrbo",
        lambda problem, L: bl.solvers.mrbo(
            problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L, products=3, momentum=0.3
        ),
        PROBLEMS,
    ),
    Row(
        "vrbo",
        lambda problem, L: bl.solvers.vrbo(
            problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L, period=2, products=3, inner_steps=2
        ),
        PROBLEMS,
    ),
    Row(
        "fsla",
        lambda problem, L: bl.solvers.fsla(problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L, momentum=0.3),
        PROBLEMS,
    ),
]
