"""Meta-learners: x is the point from which every task's y sets out, so they have a problem of their own."""

import bilevel as bl
from zoo.table import Row

TASKS = ("tasks",)

ROWS = [
    Row("maml", lambda problem, L: bl.maml(problem, inner=1 / L, outer=0.1 / L, inner_steps=2), TASKS),
    Row(
        "fomaml",
        lambda problem, L: bl.solvers.fomaml(problem, inner=1 / L, outer=0.1 / L, inner_steps=2),
        TASKS,
    ),
    Row(
        "reptile",
        lambda problem, L: bl.solvers.reptile(problem, inner=1 / L, outer=0.5, inner_steps=2),
        TASKS,
    ),
    Row(
        "imaml",
        lambda problem, L: bl.imaml(
            problem, inner=0.5 / L, outer=0.1 / L, proximal_weight=1.0, inner_steps=4
        ),
        TASKS,
    ),
]
