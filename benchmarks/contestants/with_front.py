"""The torch front of this library: the network is a torch module, the losses are those of the others on torch."""

import numpy as np

import bilevel as bl
import bilevel.torch
from contestants.losses_torch import Network, placed, validation, weighted


def inner(x, model, batch):
    return weighted(x, tuple(model.y), batch)


def outer(x, model, batch):
    return validation(x, tuple(model.y), batch)


def runs(make, task):
    x, y, train, valid = placed(task)
    front = bl.torch.front(Network(y), inner=inner, outer=outer)
    solver, start = make(front.problem), front.start
    data = bl.Batch(inner=train, outer=valid)

    def run():
        result = bl.run(solver, x, **start, data=data, steps=task.steps)
        return np.asarray(result.x), tuple(np.asarray(result.y[f"y.{part}"]) for part in range(len(y)))

    return run


def itd(task, tolerance):
    return runs(lambda problem: bl.itd(problem, inner=task.alpha, outer=task.beta), task)


def aid(task, tolerance):
    return runs(lambda problem: bl.aid(problem, inner=task.alpha, adjoint=task.alpha, outer=task.beta), task)


def aid_neumann(task, tolerance):
    series = bl.adjoints.neumann(task.alpha, 1)
    return runs(lambda problem: bl.aid(problem, inner=task.alpha, adjoint=series, outer=task.beta), task)


def soba(task, tolerance):
    return runs(lambda problem: bl.soba(problem, inner=task.alpha, adjoint=task.alpha, outer=task.beta), task)
