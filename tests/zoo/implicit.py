"""Implicit differentiation: AID with every adjoint ingredient, its relatives, and first-order shortcuts."""

import optax

from bilevel import (
    adjoints,
    aid,
    darts,
    darts_first_order,
    fixed_preconditioner,
    hoag,
    qnbo,
    sama,
    soba,
    stocbio,
)
from zoo.table import Row

DECREASING = optax.exponential_decay(0.1, 1, 0.9)


DECOUPLED = optax.chain(optax.scale_by_rms(), optax.add_decayed_weights(0.01), optax.scale(-0.01))

ROWS: list[Row] = [
    Row(
        "aid_steps",
        lambda problem, L: aid(problem, 1 / L, adjoints.steps(1 / L, 4), 0.2 / L, inner_steps=4),
    ),
    Row("aid_neumann", lambda problem, L: aid(problem, 1 / L, adjoints.neumann(1 / L, 5), 0.2 / L)),
    Row("aid_cg", lambda problem, L: aid(problem, 1 / L, adjoints.cg(1e-10), 0.2 / L, inner_steps=3)),
    Row("aid_minres", lambda problem, L: aid(problem, 1 / L, adjoints.minres(1e-10), 0.2 / L)),
    Row(
        "aid_quasi_newton",
        lambda problem, L: aid(problem, 1 / L, adjoints.quasi_newton(steps=2, memory=3), 0.2 / L),
    ),
    Row(
        "aid_nystrom",
        lambda problem, L: aid(
            problem,
            1 / L,
            adjoints.damped(adjoints.minres(1e-10, preconditioner=adjoints.nystrom(2, 0.1)), 0.05),
            0.2 / L,
        ),
    ),
    Row(
        "aid_three_draws",
        lambda problem, L: aid(problem, 1 / L, 1 / L, 0.1 / L, batches="independent"),
        ("ridge_logistic",),
    ),
    Row(
        "aid_decoupled_decay",
        lambda problem, L: aid(problem, fixed_preconditioner(DECOUPLED), 1 / L, 0.1 / L),
    ),
    Row("soba", lambda problem, L: soba(problem, 1 / L, 1 / L, 0.1 / L)),
    Row(
        "hoag",
        lambda problem, L: hoag(problem, 1 / L, 0.2 / L, tolerance=DECREASING),
    ),
    Row("stocbio", lambda problem, L: stocbio(problem, 1 / L, 1 / L, 0.1 / L, products=3)),
    Row("darts", lambda problem, L: darts(problem, 1 / L, 0.1 / L, xi=1 / L)),
    Row("darts_first_order", lambda problem, L: darts_first_order(problem, 1 / L, 0.1 / L)),
    Row("sama", lambda problem, L: sama(problem, 1 / L, 0.1 / L)),
    Row("sama_optax", lambda problem, L: sama(problem, optax.rmsprop(1e-2), optax.rmsprop(1e-2))),
    Row("qnbo", lambda problem, L: qnbo(problem, 1 / L, 0.1 / L, inner_steps=2, memory=3)),
]
