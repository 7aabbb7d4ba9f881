"""The two objectives in PyTorch, for every library on it."""

import torch

from elsewhere import problem

names = ("A", "b", "A_", "b_", "x0", "y0")
A, b, A_, b_, x0, y0 = (torch.tensor(getattr(problem, n)) for n in names)


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
