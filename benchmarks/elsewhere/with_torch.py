"""PyTorch without a library: the steps on y are kept in the graph."""

import torch

from elsewhere.losses_torch import f, g, x0, y0
from elsewhere.problem import ALPHA, BETA, INNER


def solve(steps):
    x, y = x0.clone().requires_grad_(), y0
    for _ in range(steps):
        y = y.detach().requires_grad_()
        for _ in range(INNER):
            (g_y,) = torch.autograd.grad(g(x, y), y, create_graph=True)
            y = y - ALPHA * g_y
        (h,) = torch.autograd.grad(f(x, y), x)
        with torch.no_grad():
            x -= BETA * h
    return x
