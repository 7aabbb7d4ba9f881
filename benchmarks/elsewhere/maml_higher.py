"""The same MAML with higher: a functional copy of the module for each task."""

import higher
import torch
from torch.nn.functional import mse_loss

from elsewhere.maml import ALPHA, BETA, INNER, TASKS, network, tasks


def solve(steps):
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=ALPHA)
    outer = torch.optim.Adam(model.parameters(), lr=BETA)
    for _, (adapt, judge) in zip(range(steps), tasks(), strict=False):
        outer.zero_grad()
        for task in range(TASKS):
            inputs, targets = (part[task] for part in adapt)
            inputs_, targets_ = (part[task] for part in judge)
            with higher.innerloop_ctx(
                model, inner, copy_initial_weights=False
            ) as (copy, unrolled):
                for _ in range(INNER):
                    unrolled.step(mse_loss(copy(inputs), targets))
                (mse_loss(copy(inputs_), targets_) / TASKS).backward()
        outer.step()
    return (model,)
