"""A Meta-Weight-Net, which turns the loss of an example into its weight, with the torch front."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bilevel as bl

ALPHA, BETA = 0.5, 5.0  # step sizes of the classifier and of the weights

torch.manual_seed(0)
inputs = torch.randn(300, 10)
labels = inputs[:, :3].argmax(1)
labels[:80] = (labels[:80] + 1) % 3  # wrong labels
train = DataLoader(TensorDataset(inputs[:200], labels[:200]), 50)
valid = DataLoader(TensorDataset(inputs[200:], labels[200:]), 100)


def modules():
    torch.manual_seed(1)
    classifier = nn.Sequential(
        nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3)
    )
    weights = nn.Sequential(
        nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1), nn.Sigmoid()
    )
    return classifier, weights


def inner(weights, classifier, batch):
    inputs, labels = batch
    losses = cross_entropy(classifier(inputs), labels, reduction="none")
    return (weights(losses.detach()[:, None])[:, 0] * losses).mean()


def outer(weights, classifier, batch):
    inputs, labels = batch
    return cross_entropy(classifier(inputs), labels)


def solve(steps):
    classifier, weights = modules()
    front = bl.torch.front(
        classifier, inner=inner, outer=outer, x=weights
    )
    series = bl.adjoints.neumann(ALPHA, 1)
    solver = bl.aid(
        front.problem, inner=ALPHA, adjoint=series, outer=BETA
    )
    data = bl.loaders(inner=train, outer=valid)
    front.load(
        bl.run(solver, front.x0, **front.start, data=data, steps=steps)
    )
    return classifier, weights
