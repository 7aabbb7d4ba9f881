"""AID, SOBA, ITD and F2SA in plain torch, as an independent reference.

Step sizes are numbers. Models are called by `torch.func.functional_call`, so no tensor of the module changes. Second
derivatives are double backward passes, which need the math kernel of attention. A step gets a list of draws, each a
pair of batches (inner, outer).

Batch norm: every inner step updates the statistics once, with its pass over the inner batch at the point where it
starts. What follows the inner steps reads the statistics that the last one read.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

Tree = dict[str, torch.Tensor]
Draw = tuple[Any, Any]


class State(NamedTuple):
    x: torch.Tensor
    y: Tree
    other: Tree  # v of AID and SOBA, z of F2SA
    buffers: Tree


class Problem:
    """The two losses as functions of (x, y, buffers, batch)."""

    def __init__(self, model: torch.nn.Module, inner: Callable[..., Any], outer: Callable[..., Any]):
        self.models = [copy.deepcopy(model).train(mode == "train") for mode in ("train", "eval")]
        self.losses = inner, outer
        self.y0 = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
        self.buffers0 = frozen | {name: b.detach().clone() for name, b in model.named_buffers()}

    def _evaluate(self, level: int, x: Any, y: Tree, buffers: Tree, batch: Any) -> tuple[torch.Tensor, Tree]:
        written = {name: buffer.clone() for name, buffer in buffers.items()}
        call = lambda *inputs: functional_call(self.models[level], (y, written), inputs)
        with sdpa_kernel(SDPBackend.MATH):
            return self.losses[level](x, call, batch), written

    def g(self, x: Any, y: Tree, buffers: Tree, batch: Any) -> torch.Tensor:
        return self._evaluate(0, x, y, buffers, batch)[0]

    def f(self, x: Any, y: Tree, buffers: Tree, batch: Any) -> torch.Tensor:
        return self._evaluate(1, x, y, buffers, batch)[0]

    def next_buffers(self, x: Any, y: Tree, buffers: Tree, batch: Any) -> Tree:
        """Return the buffers after the inner loss, detached."""
        with torch.no_grad():
            return self._evaluate(0, x, y, buffers, batch)[1]


def gradients(
    loss: Callable[..., torch.Tensor], x: torch.Tensor, y: Tree, buffers: Tree, batch: Any, keep: bool = False
) -> tuple[torch.Tensor, Tree, tuple[torch.Tensor, Tree]]:
    """Return the gradients in x and in y, and the variables that they are functions of."""
    x, y = x.detach().requires_grad_(), {name: p.detach().requires_grad_() for name, p in y.items()}
    of_x, of_y = in_both(loss(x, y, buffers, batch), x, y, keep)
    return of_x, of_y, (x, y)


def in_both(value: torch.Tensor, x: torch.Tensor, y: Tree, keep: bool = False) -> tuple[torch.Tensor, Tree]:
    if not value.requires_grad:
        return torch.zeros_like(x), zeros(y)
    options = {"create_graph": keep, "allow_unused": True, "materialize_grads": True}
    with sdpa_kernel(SDPBackend.MATH):
        found = torch.autograd.grad(value, (x, *y.values()), **options)
    return found[0], dict(zip(y, found[1:], strict=True))


def products(
    loss: Callable[..., torch.Tensor], x: torch.Tensor, y: Tree, buffers: Tree, batch: Any, v: Tree
) -> tuple[torch.Tensor, Tree]:
    """Return ∇²_xy g · v and ∇²_yy g · v, the gradients of ⟨∇_y g, v⟩."""
    _, of_y, (x, y) = gradients(loss, x, y, buffers, batch, keep=True)
    return in_both(sum((of_y[name] * v[name]).sum() for name in y), x, y)  # pyright: ignore


def zeros(y: Tree) -> Tree:
    return {name: torch.zeros_like(p) for name, p in y.items()}


def moved(y: Tree, by: float, along: Tree) -> Tree:
    return {name: (p - by * along[name]).detach() for name, p in y.items()}


class Inner(NamedTuple):
    y: Tree
    seen: Tree  # the buffers that the last step read
    after: Tree


def descend(
    problem: Problem, x: torch.Tensor, y: Tree, buffers: Tree, drawn: Sequence[Draw], alpha: float, steps: int
) -> Inner:
    """Take `steps` steps on y, each on its draw."""
    seen = after = buffers
    for t in range(steps):
        seen = after
        batch = drawn[t % len(drawn)][0]
        _, of_y, _ = gradients(problem.g, x, y, seen, batch)
        after = problem.next_buffers(x, y, seen, batch)
        y = moved(y, alpha, of_y)
    return Inner(y, seen, after)


def aid(problem: Problem, alpha: float, eta: float, beta: float, steps: int = 1) -> Callable[..., State]:
    """Return a step of AID: N steps on y, then one on v, then one on x, all at the new y."""

    def step(state: State, drawn: Sequence[Draw]) -> State:
        x, y, v, buffers = state
        y, seen, after = descend(problem, x, y, buffers, drawn, alpha, steps)
        for_v, for_x = (drawn[-2], drawn[-1]) if len(drawn) > 1 else (drawn[0], drawn[0])
        _, b, _ = gradients(problem.f, x, y, seen, for_v[1])
        _, hessian = products(problem.g, x, y, seen, for_v[0], v)
        v = {name: v[name] - eta * (hessian[name] - b[name]) for name in y}
        f_x, _, _ = gradients(problem.f, x, y, seen, for_x[1])
        cross, _ = products(problem.g, x, y, seen, for_x[0], v)
        return State(x - beta * (f_x - cross), y, v, after)

    return step


def soba(problem: Problem, alpha: float, eta: float, beta: float) -> Callable[..., State]:
    """Return a step of SOBA, with all directions at the point where it starts."""

    def step(state: State, drawn: Sequence[Draw]) -> State:
        x, y, v, buffers = state
        ((inner, outer),) = drawn
        _, g_y, _ = gradients(problem.g, x, y, buffers, inner)
        f_x, f_y, _ = gradients(problem.f, x, y, buffers, outer)
        cross, hessian = products(problem.g, x, y, buffers, inner, v)
        after = problem.next_buffers(x, y, buffers, inner)
        v_next = {name: v[name] - eta * (hessian[name] - f_y[name]) for name in y}
        return State(x - beta * (f_x - cross), moved(y, alpha, g_y), v_next, after)

    return step


def itd(problem: Problem, alpha: float, beta: float, steps: int = 1) -> Callable[..., State]:
    """Return a step of ITD: autograd goes through the inner steps. The buffers are constants."""

    def step(state: State, drawn: Sequence[Draw]) -> State:
        x, start, _, buffers = state
        x = x.detach().requires_grad_()
        y = {name: p.detach().requires_grad_() for name, p in start.items()}
        seen = after = buffers
        for t in range(steps):
            seen = after
            batch = drawn[t % len(drawn)][0]
            _, of_y = in_both(problem.g(x, y, seen, batch), x, y, keep=True)
            after = problem.next_buffers(x, y, seen, batch)
            y = {name: y[name] - alpha * of_y[name] for name in y}
        with sdpa_kernel(SDPBackend.MATH):
            (hypergradient,) = torch.autograd.grad(problem.f(x, y, seen, drawn[-1][1]), x)
        return State((x - beta * hypergradient).detach(), moved(y, 0.0, y), {}, after)

    return step


def f2sa(problem: Problem, gamma: float, beta: float, penalty: float, steps: int = 1) -> Callable[..., State]:
    """Return a step of F2SA. The buffers follow z, the copy that minimizes g."""

    def step(state: State, drawn: Sequence[Draw]) -> State:
        x, y, z, buffers = state
        at = lambda i: drawn[i % len(drawn)]
        seen = after = buffers
        for t in range(steps):
            seen = after
            for_z, for_y = at(2 * t), at(2 * t + 1)
            _, g_z, _ = gradients(problem.g, x, z, seen, for_z[0])
            _, g_y, _ = gradients(problem.g, x, y, seen, for_y[0])
            _, f_y, _ = gradients(problem.f, x, y, seen, for_y[1])
            after = problem.next_buffers(x, z, seen, for_z[0])
            z = moved(z, gamma, g_z)
            y = moved(moved(y, gamma, g_y), gamma / penalty, f_y)
        at_y, at_z = at(2 * steps), at(2 * steps + 1)
        f_x, _, _ = gradients(problem.f, x, y, seen, at_y[1])
        g_x_at_y, _, _ = gradients(problem.g, x, y, seen, at_y[0])
        g_x_at_z, _, _ = gradients(problem.g, x, z, seen, at_z[0])
        x = x - beta / penalty * (f_x + penalty * (g_x_at_y - g_x_at_z))
        return State(x, y, z, after)

    return step


def start(problem: Problem, x0: torch.Tensor, copies: bool) -> State:
    """Return the start of a run, for methods with a second copy of y or with v = 0."""
    return State(x0, problem.y0, problem.y0 if copies else zeros(problem.y0), problem.buffers0)


def run(
    step: Callable[..., State], state: State, loaders: Sequence[Any], steps: int, draws: int = 1
) -> State:
    """Take steps, each on `draws` batches of both loaders, which begin again when they end."""
    inner, outer = (endless(loader) for loader in loaders)
    for _ in range(steps):
        state = step(state, [(next(inner), next(outer)) for _ in range(draws)])
    return state


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
