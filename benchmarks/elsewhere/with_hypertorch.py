"""hypertorch: a fixed-point map, and a hypergradient by iterating its derivative."""

import torch
from hypergrad import fixed_point

from elsewhere.losses_torch import f, g, x0, y0
from elsewhere.problem import ALPHA, BETA, INNER


def gradient_step(params, hparams):
    (y,), (x,) = params, hparams
    (g_y,) = torch.autograd.grad(g(x, y), y, create_graph=True)
    return [y - ALPHA * g_y]


def outer_loss(params, hparams):
    return f(*hparams, *params)


def solve(steps):
    x, y = x0.clone().requires_grad_(), y0
    outer = torch.optim.SGD([x], lr=BETA)
    for _ in range(steps):
        outer.zero_grad()
        for _ in range(INNER):
            (y,) = gradient_step(
                [y.detach().requires_grad_()], [x.detach()]
            )
        fixed_point([y], [x], 2 * INNER, gradient_step, outer_loss)
        outer.step()
    return x
