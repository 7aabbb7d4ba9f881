"""The two objectives in PyTorch, for every library on it."""

import torch

from elsewhere import problem

parts = ("A", "b", "A_", "b_", "x0", "y0")
parts = (torch.tensor(getattr(problem, name)) for name in parts)
A, b, A_, b_, x0, y0 = parts


def g(x, y):
    return ((A @ y - b) ** 2).mean() / 2 + (x.exp() * y**2).sum() / 2


def f(x, y):
    return ((A_ @ y - b_) ** 2).mean() / 2 + 0.05 * (x**2).sum()


class Vector(torch.nn.Module):
    """For the libraries that want a module: its parameters are one vector."""

    def __init__(self, start):
        super().__init__()
        self.vector = torch.nn.Parameter(start.clone())

    def forward(self, *_):
        return self.vector
