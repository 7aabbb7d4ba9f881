"""Penalty methods, which take no second derivatives, and methods without step sizes."""

import optax

import bilevel as bl
from zoo.table import Row

ROWS = [
    Row(
        "f2sa",
        lambda problem, L: bl.f2sa(
            problem,
            optax.sgd(0.5 / L, momentum=0.5),
            optax.rmsprop(1e-2),
            penalty=lambda k: 1.0 + 0.1 * k.astype(float),
            inner_steps=2,
        ),
    ),
    Row("f3sa", lambda problem, L: bl.f3sa(problem, 1 / L, 0.1 / L, penalty=5.0, momentum=0.3)),
    Row("f2ba", lambda problem, L: bl.f2ba(problem, 1 / L, 0.1 / L, penalty=20.0, inner_steps=3)),
    Row("meha", lambda problem, L: bl.meha(problem, 0.5 / L, 0.1 / L, penalty=5.0, proximal=1 / L)),
    Row("tuning_free", lambda problem, L: bl.tuning_free(problem)),
    Row("d_tfbo", lambda problem, L: bl.d_tfbo(problem, inner_steps=2, adjoint_steps=3)),
    Row("s_tfbo", lambda problem, L: bl.s_tfbo(problem)),
]
