"""TorchOpt: its functional optimizers unrolled, and `custom_root` for implicit differentiation."""

import torch
import torchopt
from torch.func import grad

from contestants.losses_torch import (
    fetched,
    placed,
    ridge as penalized,
    squares,
    validation as f,
    weighted as g,
)


def runs(step, task):
    """`step(x, y, train, valid) -> (hypergradient, y)`."""
    _, _, train, valid = placed(task)

    def run():
        x, y, _, _ = placed(task)
        x.requires_grad_()
        rule = torchopt.sgd(lr=task.beta)
        memory = rule.init((x,))
        for _ in range(task.steps):
            h, y = step(x, tuple(part.detach().requires_grad_() for part in y), train, valid)
            updates, memory = rule.update((h,), memory, inplace=True)
            torchopt.apply_updates((x,), updates, inplace=True)
        return fetched(x, y)

    return run


def itd(task, tolerance):
    rule = torchopt.sgd(lr=task.alpha)

    def step(x, y, train, valid):
        g_y = torch.autograd.grad(g(x, y, train), y, create_graph=True)
        updates, _ = rule.update(g_y, rule.init(y), inplace=False)
        y = torchopt.apply_updates(y, updates, inplace=False)
        return torch.autograd.grad(f(x, y, valid), x)[0], y

    return runs(step, task)


def aid(task, tolerance):
    """`custom_root` takes any solver of the adjoint system: here one step from where the last ended."""
    rule = torchopt.sgd(lr=task.alpha)
    last = {}

    def one_step(product, b):
        u = last.get("u") or tuple(map(torch.zeros_like, b))
        residual = torchopt.pytree.tree_map(torch.sub, product(u), b)
        last["u"] = torchopt.pytree.tree_map(lambda u, r: u - task.alpha * r, u, residual)
        return last["u"]

    @torchopt.diff.implicit.custom_root(
        lambda y, x, train: grad(g, 1)(x, y, train), argnums=1, solve=one_step
    )
    def inner(y, x, train):
        with torch.enable_grad():
            g_y = torch.autograd.grad(g(x, y, train), y)
        updates, _ = rule.update(g_y, rule.init(y), inplace=True)
        return torchopt.apply_updates(y, updates, inplace=False)

    def step(x, y, train, valid):
        y = inner(y, x, train)
        return torch.autograd.grad(f(x, y, valid), x)[0], y

    run = runs(step, task)

    def from_the_start():
        last.clear()
        return run()

    return from_the_start


def ridge(task, tolerance):
    """The inner problem by `torch.optim.LBFGS`, TorchOpt having no solver to a tolerance, the adjoint by its own CG."""
    solve = torchopt.linear_solve.solve_cg(rtol=tolerance)

    @torchopt.diff.implicit.custom_root(
        lambda y, x, train: grad(penalized, 1)(x, y, train), argnums=1, solve=solve
    )
    def inner(y, x, train):
        y = tuple(part.clone().requires_grad_() for part in y)
        x = x.detach()
        rule = torch.optim.LBFGS(
            y,
            max_iter=1000,
            history_size=10,
            tolerance_grad=tolerance,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

        def loss():
            rule.zero_grad()
            value = penalized(x, y, train)
            value.backward()
            return value

        with torch.enable_grad():
            rule.step(loss)
        return tuple(part.detach() for part in y)

    def step(x, y, train, valid):
        y = inner(y, x, train)
        return torch.autograd.grad(squares(x, y, valid), x)[0], y

    return runs(step, task)
