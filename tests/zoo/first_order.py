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
            inner=optax.sgd(0.5 / L, momentum=0.5),
            outer=optax.rmsprop(1e-2),
            penalty=growing,
            inner_steps=2,
        ),
    ),
    Row(
        "f3sa",
        lambda problem, L: bl.solvers.f3sa(problem, inner=1 / L, outer=0.1 / L, penalty=5.0, momentum=0.3),
    ),
    Row(
        "f2ba",
        lambda problem, L: bl.solvers.f2ba(problem, inner=1 / L, outer=0.1 / L, penalty=20.0, inner_steps=3),
    ),
    Row(
        "meha",
        lambda problem, L: bl.solvers.meha(
            problem, inner=0.5 / L, outer=0.1 / L, penalty=5.0, proximal_step=1 / L
        ),
    ),
    Row(
        "f2sa_p",
        lambda problem, L: bl.solvers.f2sa_p(
            problem, inner=0.5 / L, outer=0.1 / L, penalty=20.0, order=3, inner_steps=2
        ),
        FEW,
    ),
    Row(
        "acc_f2ba",
        lambda problem, L: bl.solvers.acc_f2ba(
            problem, inner=1 / L, outer=0.1 / L, penalty=20.0, radius=0.1, inner_steps=3
        ),
        FEW,
    ),
    Row(
        "bome",
        lambda problem, L: bl.solvers.bome(
            problem, inner=0.1 / L, outer=0.1 / L, inner_steps=3, auxiliary=1 / L
        ),
        FEW,
    ),
    Row(
        "v_pbgd",
        lambda problem, L: bl.solvers.v_pbgd(problem, inner=0.5 / L, outer=0.1 / L, penalty=5.0),
        FEW,
    ),
    Row(
        "g_pbgd",
        lambda problem, L: bl.solvers.g_pbgd(problem, inner=0.5 / L**2, outer=0.1 / L**2, penalty=5.0),
        FEW,
    ),
    Row(
        "pzobo",
        lambda problem, L: bl.solvers.pzobo(problem, inner=1 / L, outer=0.1 / L, directions=2, inner_steps=3),
        FEW,
    ),
    Row("tuning_free", lambda problem, L: bl.tuning_free(problem)),
    Row("d_tfbo", lambda problem, L: bl.solvers.d_tfbo(problem, inner_steps=2, adjoint_steps=3)),
    Row("s_tfbo", lambda problem, L: bl.solvers.s_tfbo(problem)),
]
