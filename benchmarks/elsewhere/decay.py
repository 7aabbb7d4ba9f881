"""A decay for each input of a classifier with the torch front: implicit gradients, by conjugate gradients."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bilevel as bl

ALPHA, BETA, INNER = 0.5, 5.0, 100

torch.manual_seed(0)
inputs = torch.randn(80, 20)
labels = (inputs[:, :3] + 0.5 * torch.randn(80, 3)).argmax(1)
train, valid = (inputs[:40], labels[:40]), (inputs[40:], labels[40:])
x0 = torch.full((20,), -3.0)


def model():
    torch.manual_seed(1)
    return nn.Linear(20, 3, bias=False)


def inner(x, model, batch):
    inputs, labels = batch
    decay = (x.exp() * model.weight**2).sum() / 2
    return cross_entropy(model(inputs), labels) + decay


def outer(x, model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def solve(steps):
    classifier = model()
    front = bl.torch.front(classifier, inner=inner, outer=outer)
    cg = bl.adjoints.cg(1e-10)
    solver = bl.aid(
        front.problem,
        inner=ALPHA,
        adjoint=cg,
        outer=BETA,
        inner_steps=INNER,
    )
    data = bl.Batch(inner=train, outer=valid)
    result = bl.run(solver, x0, **front.start, data=data, steps=steps)
    front.load(result)
    return classifier, result.x
