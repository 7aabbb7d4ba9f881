"""The paper's two algorithms, with gradient descent and with stateful rules at every level.

optax.adam itself mixes dtypes that strict promotion refuses, so it has tests of its own outside the table.
"""

import optax

import bilevel as bl
from zoo.table import Row

ROWS = [
    Row("aid", lambda problem, L: bl.aid(problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L)),
    Row("itd", lambda problem, L: bl.itd(problem, inner=1 / L, outer=0.1 / L)),
    Row(
        "aid_optax",
        lambda problem, L: bl.aid(
            problem,
            inner=optax.sgd(0.5 / L, momentum=0.5),
            adjoint=optax.sgd(0.5 / L, momentum=0.5),
            outer=optax.rmsprop(1e-2),
        ),
    ),
    Row(
        "itd_optax", lambda problem, L: bl.itd(problem, inner=optax.rmsprop(1e-2), outer=optax.rmsprop(1e-2))
    ),
]
