"""MAML on sine curves with the torch front: x is the initialization of the module."""

import dataclasses
import math

import optax
import torch
from torch import nn
from torch.nn.functional import mse_loss

import bilevel as bl

ALPHA, BETA, INNER, TASKS = 0.05, 1e-2, 3, 4


def tasks():
    """Yield examples to adapt to and examples to judge by, of TASKS curves each."""
    generator = torch.Generator().manual_seed(0)
    while True:
        draw = torch.rand(TASKS, 22, 1, generator=generator)
        amplitudes, phases = 0.5 + draw[:, :1], math.pi * draw[:, 1:2]
        inputs = 8 * draw[:, 2:] - 4
        targets = amplitudes * torch.sin(inputs + phases)
        yield tuple(
            (inputs[:, part], targets[:, part])
            for part in (slice(10), slice(10, 20))
        )


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 1))


def loss(x, model, batch):
    inputs, targets = batch
    return mse_loss(model(inputs), targets)


def solve(steps):
    model = network()
    front = bl.torch.front(model, inner=loss, outer=loss)
    rule = optax.adam(BETA)
    solver = bl.maml(
        front.problem, inner=ALPHA, outer=rule, inner_steps=INNER
    )
    data = (
        bl.Batch(inner=adapt, outer=judge) for adapt, judge in tasks()
    )
    y0 = front.start["y0"]
    result = bl.run(solver, y0, y0, data=data, steps=steps)
    front.load(dataclasses.replace(result, y=result.x))
    return (model,)
