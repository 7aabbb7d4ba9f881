"""Betty: two problems under an engine; its adjoint is a Neumann series from zero."""

import torch
from betty.configs import Config, EngineConfig
from betty.engine import Engine
from betty.problems import ImplicitProblem
from torch.nn import functional

from contestants.losses_torch import Network, Weights, fetched, placed


class Outer(ImplicitProblem):
    def training_step(self, batch):
        inputs, labels = batch
        return functional.cross_entropy(self.inner(inputs), labels)


class Inner(ImplicitProblem):
    def training_step(self, batch):
        inputs, labels = batch
        return (self.outer() * functional.cross_entropy(self.module(inputs), labels, reduction="none")).mean()


def aid_neumann(task, tolerance):
    _, _, train, valid = placed(task)
    series = Config(type="neumann", neumann_iterations=1, neumann_alpha=task.alpha, retain_graph=False)

    def run():
        x, y, _, _ = placed(task)
        weights, network = Weights(x), Network(y)
        problem = lambda kind, name, config, module, step_size, rows: kind(
            name=name,
            config=config,
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=step_size),
            train_data_loader=[rows],
            device="cpu",
        )
        outer = problem(Outer, "outer", Config(retain_graph=True), weights, task.beta, valid)
        inner = problem(Inner, "inner", series, network, task.alpha, train)
        above = {"u2l": {outer: [inner]}, "l2u": {inner: [outer]}}
        Engine(problems=[outer, inner], config=EngineConfig(train_iters=task.steps), dependencies=above).run()
        return fetched(weights.x, network.parameters())

    return run
