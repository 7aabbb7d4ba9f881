"""Betty: two problems under an engine, which counts steps of the lower one; a Neumann series for the adjoint."""

import torch
from betty.configs import Config, EngineConfig
from betty.engine import Engine
from betty.problems import ImplicitProblem

from elsewhere.losses_torch import Vector, f, g, x0, y0
from elsewhere.problem import ALPHA, BETA, INNER


class Outer(ImplicitProblem):
    def training_step(self, batch):
        return f(self.module(), self.inner())


class Inner(ImplicitProblem):
    def training_step(self, batch):
        return g(self.outer(), self.module())


def problem(kind, start, step_size, **options):
    module = Vector(start)
    optimizer = torch.optim.SGD(module.parameters(), lr=step_size)
    config = Config(log_step=-1, **options)
    name, loader = kind.__name__.lower(), [()]
    parts = dict(module=module, optimizer=optimizer, device="cpu")
    return kind(name, config, train_data_loader=loader, **parts)


def solve(steps):
    outer = problem(Outer, x0, BETA, retain_graph=True)
    series = dict(neumann_iterations=INNER, neumann_alpha=ALPHA)
    adjoint = dict(type="neumann", unroll_steps=INNER, **series)
    inner = problem(Inner, y0, ALPHA, **adjoint)
    above = {"u2l": {outer: [inner]}, "l2u": {inner: [outer]}}
    config = EngineConfig(train_iters=steps * INNER)
    Engine([outer, inner], config, above).run()
    return outer.module.vector
