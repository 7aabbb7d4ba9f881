"""The same Meta-Weight-Net with Betty: two problems under an engine, and one term of a Neumann series."""

import torch
from betty.configs import Config, EngineConfig
from betty.engine import Engine
from betty.problems import ImplicitProblem
from torch.nn.functional import cross_entropy

from elsewhere.weight_net import ALPHA, BETA, modules, train, valid


class Weights(ImplicitProblem):
    def training_step(self, batch):
        inputs, labels = batch
        return cross_entropy(self.classifier(inputs), labels)


class Classifier(ImplicitProblem):
    def training_step(self, batch):
        inputs, labels = batch
        losses = cross_entropy(
            self.module(inputs), labels, reduction="none"
        )
        weights = self.weights(losses.detach()[:, None])[:, 0]
        return (weights * losses).mean()


def problem(kind, module, step_size, loader, **options):
    optimizer = torch.optim.SGD(module.parameters(), lr=step_size)
    config = Config(log_step=-1, **options)
    parts = dict(module=module, optimizer=optimizer, device="cpu")
    name = kind.__name__.lower()
    return kind(name, config, train_data_loader=loader, **parts)


def solve(steps):
    classifier, weights = modules()
    upper = problem(Weights, weights, BETA, valid, retain_graph=True)
    series = dict(neumann_iterations=1, neumann_alpha=ALPHA)
    adjoint = dict(type="neumann", unroll_steps=1, **series)
    lower = problem(Classifier, classifier, ALPHA, train, **adjoint)
    above = {"u2l": {upper: [lower]}, "l2u": {lower: [upper]}}
    Engine([upper, lower], EngineConfig(train_iters=steps), above).run()
    return classifier, weights
