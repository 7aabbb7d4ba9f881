"""Implicit differentiation: AID with every adjoint ingredient, its relatives, and first-order shortcuts."""

import optax

from bilevel import adjoints, aid, fixed_preconditioner, hoag, soba, stocbio
from bilevel.solvers import darts, darts_first_order, qnbo, sama
from zoo.table import Row

DECREASING = optax.exponential_decay(0.1, 1, 0.9)


DECOUPLED = optax.chain(optax.scale_by_rms(), optax.add_decayed_weights(0.01), optax.scale(-0.01))

ROWS: list[Row] = [
    Row(
        "aid_steps",
        lambda problem, L: aid(
            problem, inner=1 / L, adjoint=adjoints.steps(1 / L, 4), outer=0.2 / L, inner_steps=4
        ),
    ),
    Row(
        "aid_neumann",
        lambda problem, L: aid(problem, inner=1 / L, adjoint=adjoints.neumann(1 / L, 5), outer=0.2 / L),
    ),
    Row(
        "aid_cg",
        lambda problem, L: aid(
            problem, inner=1 / L, adjoint=adjoints.cg(1e-10), outer=0.2 / L, inner_steps=3
        ),
    ),
    Row(
        "aid_minres",
        lambda problem, L: aid(problem, inner=1 / L, adjoint=adjoints.minres(1e-10), outer=0.2 / L),
    ),
    Row(
        "aid_quasi_newton",
        lambda problem, L: aid(
            problem, inner=1 / L, adjoint=adjoints.quasi_newton(steps=2, memory=3), outer=0.2 / L
        ),
    ),
    Row(
        "aid_nystrom",
        lambda problem, L: aid(
            problem,
            inner=1 / L,
            adjoint=adjoints.damped(adjoints.minres(1e-10, preconditioner=adjoints.nystrom(2, 0.1)), 0.05),
            outer=0.2 / L,
        ),
    ),
    Row(
        "aid_three_draws",
        lambda problem, L: aid(problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L, batches="independent"),
        ("ridge_logistic",),
    ),
    Row(
        "aid_decoupled_decay",
        lambda problem, L: aid(problem, inner=fixed_preconditioner(DECOUPLED), adjoint=1 / L, outer=0.1 / L),
    ),
    Row("soba", lambda problem, L: soba(problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L)),
    Row(
        "hoag",
        lambda problem, L: hoag(problem, inner=1 / L, outer=0.2 / L, tol=DECREASING),
    ),
    Row(
        "stocbio", lambda problem, L: stocbio(problem, inner=1 / L, adjoint=1 / L, outer=0.1 / L, products=3)
    ),
    Row("darts", lambda problem, L: darts(problem, inner=1 / L, outer=0.1 / L, virtual_step=1 / L)),
    Row("darts_first_order", lambda problem, L: darts_first_order(problem, inner=1 / L, outer=0.1 / L)),
    Row("sama", lambda problem, L: sama(problem, inner=1 / L, outer=0.1 / L)),
    Row("sama_optax", lambda problem, L: sama(problem, inner=optax.rmsprop(1e-2), outer=optax.rmsprop(1e-2))),
    Row("qnbo", lambda problem, L: qnbo(problem, inner=1 / L, outer=0.1 / L, inner_steps=2, memory=3)),
]
