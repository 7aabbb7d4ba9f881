"""PyTorch without a library: eager, reverse over reverse, graphs kept no longer than they are needed."""

import torch

from contestants.losses_torch import (
    fetched,
    placed,
    ridge as penalized,
    squares,
    validation as f,
    weighted as g,
)


def runs(step, task, adjoint=True):
    """`step(x, y, v, train, valid)` changes x, y and v in place."""
    _, _, train, valid = placed(task)

    def run():
        x, y, _, _ = placed(task)
        for part in (x, *y):
            part.requires_grad_()
        v = tuple(map(torch.zeros_like, y))
        for _ in range(task.steps):
            step(x, y, v, train, valid)
        return fetched(x, y)

    return run


@torch.no_grad()
def descend(parts, step_size, gradients):
    torch._foreach_add_(list(parts), list(gradients), alpha=-step_size)


def itd(task, tolerance):
    def step(x, y, v, train, valid):
        g_y = torch.autograd.grad(g(x, y, train), y, create_graph=True)
        ahead = tuple(p - task.alpha * q for p, q in zip(y, g_y, strict=True))
        (h,) = torch.autograd.grad(f(x, ahead, valid), x)
        with torch.no_grad():
            for part, new in zip(y, ahead, strict=True):
                part.copy_(new)
        descend([x], task.beta, [h])

    return runs(step, task)


def aid(task, tolerance):
    def step(x, y, v, train, valid):
        descend(y, task.alpha, torch.autograd.grad(g(x, y, train), y))
        f_y = torch.autograd.grad(f(x, y, valid), y)
        g_y = torch.autograd.grad(g(x, y, train), y, create_graph=True)
        hessian = torch.autograd.grad(g_y, y, v, retain_graph=True)
        descend(v, task.alpha, [p - q for p, q in zip(hessian, f_y, strict=True)])
        (cross,) = torch.autograd.grad(g_y, x, v)
        descend([x], -task.beta, [cross])

    return runs(step, task)


def soba(task, tolerance):
    def step(x, y, v, train, valid):
        f_y = torch.autograd.grad(f(x, y, valid), y)
        g_y = torch.autograd.grad(g(x, y, train), y, create_graph=True)
        cross, *hessian = torch.autograd.grad(g_y, (x, *y), v)
        descend(v, task.alpha, [p - q for p, q in zip(hessian, f_y, strict=True)])
        descend(y, task.alpha, g_y)
        descend([x], -task.beta, [cross])

    return runs(step, task)


def conjugate_gradients(product, b, start, tolerance):
    solution, residual = start, b - product(start)
    direction, size = residual, residual @ residual
    smallest = tolerance**2 * (b @ b)
    while size > smallest:
        image = product(direction)
        length = size / (direction @ image)
        solution, residual = solution + length * direction, residual - length * image
        before, size = size, residual @ residual
        direction = residual + size / before * direction
    return solution


def ridge(task, tolerance):
    """Both systems by warm-started conjugate gradients: whoever writes by hand knows that g is quadratic."""

    def step(x, y, v, train, valid):
        (g_y,) = torch.autograd.grad(penalized(x, y, train), y, create_graph=True)
        product = lambda p: torch.autograd.grad(g_y, y, p, retain_graph=True)[0]
        here = y[0].detach()
        b = product(here) - g_y.detach()
        solved = conjugate_gradients(product, b, here, tolerance)
        with torch.no_grad():
            y[0].copy_(solved)
        (f_y,) = torch.autograd.grad(squares(x, y, valid), y)
        (g_y,) = torch.autograd.grad(penalized(x, y, train), y, create_graph=True)
        v[0].copy_(conjugate_gradients(product, f_y, v[0], tolerance))
        (cross,) = torch.autograd.grad(g_y, x, v)
        descend([x], -task.beta, [cross])

    return runs(step, task)
