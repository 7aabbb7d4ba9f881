"""This library, in the idioms that people come from."""

import bilevel as bl
from elsewhere.losses_jax import f, g
from elsewhere.problem import A_, ALPHA, BETA, INNER, A, b, b_, x0, y0

problem = bl.Problem(inner=g, outer=f)
data = bl.Batch(inner=(A, b), outer=(A_, b_))


def unrolled(steps):
    solver = bl.itd(problem, inner=ALPHA, outer=BETA, inner_steps=INNER)
    return bl.run(solver, x0, y0, data=data, steps=steps).x


def implicit(steps):
    cg = bl.adjoints.cg(1e-10)
    solver = bl.aid(
        problem, inner=ALPHA, adjoint=cg, outer=BETA, inner_steps=INNER
    )
    return bl.run(solver, x0, y0, data=data, steps=steps).x


def single_loop(steps):
    solver = bl.aid(problem, inner=ALPHA, adjoint=ALPHA, outer=BETA)
    return bl.run(solver, x0, y0, data=data, steps=steps).x


def without_step_sizes(steps):
    solver = bl.tuning_free(problem)
    return bl.run(solver, x0, y0, data=data, steps=steps).x
