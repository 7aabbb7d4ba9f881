"""higher: a functional copy of the network and of `torch.optim.SGD`, differentiated through."""

import higher
import torch
from torch.nn import functional

from contestants.losses_torch import Network, Weights, fetched, placed


def itd(task, tolerance):
    _, _, (inputs, labels), (inputs_, labels_) = placed(task)

    def run():
        x, y, _, _ = placed(task)
        weights, network = Weights(x), Network(y)
        inner = torch.optim.SGD(network.parameters(), lr=task.alpha)
        outer = torch.optim.SGD(weights.parameters(), lr=task.beta)
        for _ in range(task.steps):
            with higher.innerloop_ctx(network, inner, copy_initial_weights=False) as (ahead, unrolled):
                losses = functional.cross_entropy(ahead(inputs), labels, reduction="none")
                unrolled.step((weights() * losses).mean())
                loss = functional.cross_entropy(ahead(inputs_), labels_)
                (weights.x.grad,) = torch.autograd.grad(loss, weights.x)
                outer.step()
                with torch.no_grad():
                    for old, new in zip(network.parameters(), ahead.parameters(), strict=True):
                        old.copy_(new)
        return fetched(weights.x, network.parameters())

    return run
