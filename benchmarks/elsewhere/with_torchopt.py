"""TorchOpt: an inner loop of yours, differentiated implicitly by `custom_root` with its conjugate gradients."""

import torch
import torchopt
from torch.func import grad
from torchopt.diff.implicit import custom_root

from elsewhere.losses_torch import f, g, x0, y0
from elsewhere.problem import ALPHA, BETA, INNER

g_y = grad(g, argnums=1)
cg = torchopt.linear_solve.solve_cg(rtol=1e-10)


@custom_root(lambda y, x: g_y(x, y), argnums=1, solve=cg)
def inner(y, x):
    for _ in range(INNER):
        y = y - ALPHA * g_y(x, y)
    return y


def solve(steps):
    x, y = x0.clone().requires_grad_(), y0
    outer = torch.optim.SGD([x], lr=BETA)
    for _ in range(steps):
        outer.zero_grad()
        y = inner(y.detach(), x)
        f(x, y).backward()
        outer.step()
    return x
