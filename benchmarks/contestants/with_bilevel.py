"""This library: its solvers under `bl.run`."""

import optax

import bilevel as bl
from contestants.losses_jax import fetched, placed, ridge as penalized, squares, validation, weighted

REWEIGHTING = bl.Problem(inner=weighted, outer=validation)


def runs(solver, task):
    x, y, train, valid = placed(task)
    data = bl.Batch(inner=train, outer=valid)

    def run():
        result = bl.run(solver, x, y, data=data, steps=task.steps)
        return fetched(result.x, result.y)

    return run


def itd(task, tolerance):
    return runs(bl.itd(REWEIGHTING, inner=task.alpha, outer=task.beta), task)


def aid(task, tolerance):
    return runs(bl.aid(REWEIGHTING, inner=task.alpha, adjoint=task.alpha, outer=task.beta), task)


def aid_neumann(task, tolerance):
    series = bl.adjoints.neumann(task.alpha, 1)
    return runs(bl.aid(REWEIGHTING, inner=task.alpha, adjoint=series, outer=task.beta), task)


def soba(task, tolerance):
    return runs(bl.soba(REWEIGHTING, inner=task.alpha, adjoint=task.alpha, outer=task.beta), task)


def ridge(task, tolerance):
    placed(task)  # in float64 from here on
    problem = bl.Problem(inner=penalized, outer=squares)
    solver = bl.hoag(
        problem, inner=optax.lbfgs(1.0, linesearch=None), outer=task.beta, tol=lambda k: tolerance
    )
    return runs(solver, task)
