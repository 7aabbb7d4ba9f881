"""Penalty methods, which take no second derivatives, and methods without step sizes."""

import optax

import bilevel as bl
from zoo.table import Row


def growing(k):
    """The same object at every call, so that a solver made again compiles nothing."""
    return 1.0 + 0.1 * k.astype(float)


FEW = ("quadratic", "trees")  # columns enough for relatives of another row

ROWS = [
    Row(
        "f2sa",
        lambda problem, L: bl.f2sa(
            problem,
            optax.sgd(0.5 / L, momentum=0.5),
            optax.rmsprop(1e-2),
            penalty=growing,
            inner_steps=2,
        ),
    ),
    Row("f3sa", lambda problem, L: bl.f3sa(problem, 1 / L, 0.1 / L, penalty=5.0, momentum=0.3)),
    Row("f2ba", lambda problem, L: bl.f2ba(problem, 1 / L, 0.1 / L, penalty=20.0, inner_steps=3)),
    Row("meha", lambda problem, L: bl.meha(problem, 0.5 / L, 0.1 / L, penalty=5.0, proximal=1 / L)),
    Row(
        "f2sa_p",
        lambda problem, L: bl.f2sa_p(problem, 0.5 / L, 0.1 / L, penalty=20.0, order=3, inner_steps=2),
        FEW,
    ),
    Row(
        "acc_f2ba",
        lambda problem, L: bl.acc_f2ba(problem, 1 / L, 0.1 / L, penalty=20.0, radius=0.1, inner_steps=3),
        FEW,
    ),
    Row("bome", lambda problem, L: bl.bome(problem, 0.1 / L, 0.1 / L, inner_steps=3, auxiliary=1 / L), FEW),
    Row("v_pbgd", lambda problem, L: bl.v_pbgd(problem, 0.5 / L, 0.1 / L, penalty=5.0), FEW),
    Row("g_pbgd", lambda problem, L: bl.g_pbgd(problem, 0.5 / L**2, 0.1 / L**2, penalty=5.0), FEW),
    Row("pzobo", lambda problem, L: bl.pzobo(problem, 1 / L, 0.1 / L, directions=2, inner_steps=3), FEW),
    Row("tuning_free", lambda problem, L: bl.tuning_free(problem)),
    Row("d_tfbo", lambda problem, L: bl.d_tfbo(problem, inner_steps=2, adjoint_steps=3)),
    Row("s_tfbo", lambda problem, L: bl.s_tfbo(problem)),
]
