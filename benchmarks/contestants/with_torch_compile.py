"""PyTorch compiled: a step written with `torch.func`, through `torch.compile`."""

import torch
from torch.func import grad, vjp

from contestants.losses_torch import fetched, placed, validation as f, weighted as g


def runs(step, task):
    """`step(x, y, v, train, valid) -> (x, y, v)`."""
    compiled = torch.compile(step, fullgraph=True, dynamic=False)
    _, _, train, valid = placed(task)

    def run():
        x, y, _, _ = placed(task)
        v = tuple(map(torch.zeros_like, y))
        with torch.no_grad():
            for _ in range(task.steps):
                x, y, v = compiled(x, y, v, train, valid)
        return fetched(x, y)

    return run


def minus(a, c, b):
    return tuple(p - c * q for p, q in zip(a, b, strict=True))


def itd(task, tolerance):
    def step(x, y, v, train, valid):
        ahead, pull = vjp(lambda x: minus(y, task.alpha, grad(g, 1)(x, y, train)), x)
        (h,) = pull(grad(f, 1)(x, ahead, valid))
        return x - task.beta * h, ahead, v

    return runs(step, task)


def aid(task, tolerance):
    def step(x, y, v, train, valid):
        y = minus(y, task.alpha, grad(g, 1)(x, y, train))
        f_y = grad(f, 1)(x, y, valid)
        _, pull = vjp(lambda x, y: grad(g, 1)(x, y, train), x, y)
        v = minus(v, task.alpha, minus(pull(v)[1], 1.0, f_y))
        return x + task.beta * pull(v)[0], y, v

    return runs(step, task)


def soba(task, tolerance):
    def step(x, y, v, train, valid):
        g_y, pull = vjp(lambda x, y: grad(g, 1)(x, y, train), x, y)
        cross, hessian = pull(v)
        f_y = grad(f, 1)(x, y, valid)
        v = minus(v, task.alpha, minus(hessian, 1.0, f_y))
        return x + task.beta * cross, minus(y, task.alpha, g_y), v

    return runs(step, task)
