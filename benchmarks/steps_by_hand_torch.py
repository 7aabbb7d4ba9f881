"""Steps of AID and SOBA on a torch module, as one would write them without a library: eager, double backward.

The statistics of batch norm change once per step, by the inner loss at the point where the step starts. The outer loss
reads them as they were before. This is what `bl.run` does.
"""

import torch
from networks_torch import inner, outer

ALPHA, ETA, BETA = 0.02, 0.02, 10.0  # steps on y, v and x


@torch.no_grad()
def descend(parts, step_size, gradients):
    torch._foreach_add_(list(parts), list(gradients), alpha=-step_size)


class Buffers:
    """The statistics of a module, saved and restored."""

    def __init__(self, model):
        self.tensors = list(model.buffers())

    def values(self):
        return [tensor.clone() for tensor in self.tensors]

    def set(self, values):
        for tensor, value in zip(self.tensors, values, strict=True):
            tensor.copy_(value)


def aid(model, x, data):
    """Return a function that takes a step."""
    y, buffers = list(model.parameters()), Buffers(model)
    v = [torch.zeros_like(p) for p in y]

    def step():
        before = buffers.values()
        model.train()
        descend(y, ALPHA, torch.autograd.grad(inner(x, model, data.inner), y))
        after = buffers.values()
        buffers.set(before)
        model.eval()
        f_y = torch.autograd.grad(outer(x, model, data.outer), y)
        model.train()
        g_y = torch.autograd.grad(inner(x, model, data.inner), y, create_graph=True)
        hessian = torch.autograd.grad(g_y, y, v, retain_graph=True)
        descend(v, ETA, [p - q for p, q in zip(hessian, f_y, strict=True)])
        (cross,) = torch.autograd.grad(g_y, x, v)
        descend([x], -BETA, [cross])
        buffers.set(after)

    return step


def soba(model, x, data):
    """Return a function that takes a step."""
    y = list(model.parameters())
    v = [torch.zeros_like(p) for p in y]

    def step():
        model.eval()
        f_y = torch.autograd.grad(outer(x, model, data.outer), y)
        model.train()
        g_y = torch.autograd.grad(inner(x, model, data.inner), y, create_graph=True)
        cross, *hessian = torch.autograd.grad(g_y, (x, *y), v)
        descend(v, ETA, [p - q for p, q in zip(hessian, f_y, strict=True)])
        descend(y, ALPHA, [p.detach() for p in g_y])
        descend([x], -BETA, [cross])

    return step


STEPS = {"AID": aid, "SOBA": soba}
