"""higher: a functional copy of the module and of its optimizer, differentiated through."""

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
        with higher.innerloop_ctx(model, inner) as (copy, unrolled):
            for _ in range(INNER):
                unrolled.step(g(x, copy()))
            f(x, copy()).backward()
            model.load_state_dict(copy.state_dict())  # else y is lost
        outer.step()
    return x
