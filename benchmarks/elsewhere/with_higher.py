"""higher: a functional copy of the module and of its optimiser, differentiated through."""

import higher
import torch

from elsewhere.losses_torch import Vector, f, g, x0, y0
from elsewhere.problem import ALPHA, BETA, INNER


def solve(steps):
    x, model = x0.clone().requires_grad_(), Vector(y0)
    inner = torch.optim.SGD(model.parameters(), lr=ALPHA)
    outer = torch.optim.SGD([x], lr=BETA)
    for _ in range(steps):
        outer.zero_grad()
        with higher.innerloop_ctx(model, inner) as (unrolled, differentiable):
            for _ in range(INNER):
                differentiable.step(g(x, unrolled()))
            f(x, unrolled()).backward()
            model.load_state_dict(unrolled.state_dict())  # the warm start is yours to make
        outer.step()
    return x
