"""Methods that differentiate through several inner steps."""

import optax

import bilevel as bl
from zoo.table import Row

ROWS = [
    Row("itd_3_steps", lambda problem, L: bl.itd(problem, inner=1 / L, outer=0.1 / L, inner_steps=3)),
    Row(
        "itd_truncated",
        lambda problem, L: bl.itd(
            problem,
            inner=optax.sgd(0.5 / L, momentum=0.5),
            outer=optax.rmsprop(1e-2),
            inner_steps=7,
            truncate=6,
            checkpoint_every=2,
        ),
    ),
    Row(
        "forward_itd",
        lambda problem, L: bl.solvers.forward_itd(problem, inner=1 / L, outer=0.1 / L, inner_steps=3),
    ),
    Row(
        "rtho",
        lambda problem, L: bl.solvers.rtho(
            problem, inner=optax.sgd(0.5 / L, momentum=0.5), outer=optax.rmsprop(1e-2)
        ),
    ),
    Row("bda", lambda problem, L: bl.solvers.bda(problem, inner=1 / L, outer=0.1 / L, inner_steps=3)),
    Row("iaptt", lambda problem, L: bl.solvers.iaptt(problem, inner=1 / L, outer=0.1 / L, inner_steps=3)),
]
