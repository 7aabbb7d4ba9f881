"""jaxopt: its solvers, unrolled or differentiated implicitly, in one `lax.scan` for a run."""

from functools import partial

import jax
from jaxopt import LBFGS, GradientDescent
from jaxopt.linear_solve import solve_cg

from contestants.by_hand_jax import runs
from contestants.losses_jax import minus, placed, ridge as penalized, squares, validation, weighted


def through(solver, outer, task):
    """A step on x along the derivative of f(x, y(x)), y(x) being what the solver makes of the last y."""

    def step(carry, train, valid):
        x, y = carry

        def value(x):
            found = solver.run(y, x, train).params
            return outer(x, found, valid), found

        h, y = jax.grad(value, has_aux=True)(x)
        return minus(x, task.beta, h), y

    return runs(step, task)


def one_step(task, **options):
    g = lambda y, x, train: weighted(x, y, train)
    return GradientDescent(g, maxiter=1, stepsize=task.alpha, acceleration=False, tol=0.0, **options)


def itd(task, tolerance):
    return through(one_step(task, implicit_diff=False, unroll=True), validation, task)


def aid_neumann(task, tolerance):
    """jaxopt takes any solver of the adjoint system, but keeps none of its solutions for a warm start."""

    def series(product, b, **_):
        total = jax.tree.map(lambda b, h: 2 * b - task.alpha * h, b, product(b))
        return jax.tree.map(lambda p: task.alpha * p, total)

    return through(one_step(task, implicit_diff=True, implicit_diff_solve=series), validation, task)


def ridge(task, tolerance):
    placed(task)
    g = lambda y, x, train: penalized(x, y, train)
    solver = LBFGS(
        g, maxiter=1000, tol=tolerance, implicit_diff_solve=partial(solve_cg, tol=tolerance, maxiter=1000)
    )
    return through(solver, squares, task)
