"""Methods that differentiate through several inner steps."""

import optax

import bilevel as bl
from zoo.table import Row

ROWS = [
    Row("itd_3_steps", lambda problem, L: bl.itd(problem, 1 / L, 0.1 / L, inner_steps=3)),
    Row(
        "itd_truncated",
        lambda problem, L: bl.itd(
            problem,
            optax.sgd(0.5 / L, momentum=0.5),
            optax.rmsprop(1e-2),
            inner_steps=7,
            truncate=6,
            checkpoint_every=2,
        ),
    ),
    Row("forward_itd", lambda problem, L: bl.forward_itd(problem, 1 / L, 0.1 / L, inner_steps=3)),
    Row("rtho", lambda problem, L: bl.rtho(problem, optax.sgd(0.5 / L, momentum=0.5), optax.rmsprop(1e-2))),
    Row("bda", lambda problem, L: bl.bda(problem, 1 / L, 0.1 / L, inner_steps=3)),
    Row("iaptt", lambda problem, L: bl.iaptt(problem, 1 / L, 0.1 / L, inner_steps=3)),
]
