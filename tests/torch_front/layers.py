"""Comparison of one exported module with torch: value, gradient, Hessian product and new buffers."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bilevel.torch.export import Graph, export
from bilevel.torch.interpreter import evaluate
from bilevel.torch.types import to_jax
from torch_front.operations import TOLERANCE, _close, _gradients, quick_jit, tensor


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def loss_of(inputs: Any, model: Any, weights: Any) -> torch.Tensor:
    """Return the weighted sum of the squared outputs."""
    outputs = [each for each in jax.tree.leaves(model(*inputs)) if each.is_floating_point()]
    return sum((each * each * weight).sum() for each, weight in zip(outputs, weights, strict=True))


def exported(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[Graph, list[torch.Tensor]]:
    """Return the graph of the loss at these inputs, which are x, and the weights, which are the batch."""
    outputs = jax.tree.leaves(copy.deepcopy(module)(*inputs))
    outputs = [each for each in outputs if each.is_floating_point()]
    weights = [tensor(*each.shape, dtype=each.dtype, seed=100 + i) for i, each in enumerate(outputs)]
    x, batch = ([to_jax(each) for each in held] for held in (inputs, weights))
    return export({"model": module}, loss_of, "inner", x, batch, torch.device("cpu")), weights


def check_layer(layer: Callable[..., Any], *inputs: torch.Tensor, tolerance: float | None = None) -> None:
    """Assert that an exported module or function agrees with torch, also in its gradients and Hessian products.

    Floating inputs and parameters are differentiated. Buffers of the layer change as in one call.
    """
    module = layer if isinstance(layer, torch.nn.Module) else Call(layer)
    graph, weights = exported(module, *inputs)
    moving = [i for i, each in enumerate(inputs) if each.is_floating_point()]
    parameters = [name for name, p in module.named_parameters() if p.requires_grad]
    held = (
        [to_jax(each) for each in inputs],
        {f"model.{n}": to_jax(each) for n, each in module.state_dict().items()},
    )

    def ours(*values: Any) -> Any:
        leaves, tensors = list(held[0]), dict(held[1])
        for where, value in zip(moving + parameters, values, strict=True):
            if isinstance(where, int):
                leaves[where] = value
            else:
                tensors[f"model.{where}"] = value
        (loss, *_), written = evaluate(graph, leaves + [to_jax(each) for each in weights], tensors, None)
        return loss, written

    variables = [inputs[i].detach().clone().requires_grad_(True) for i in moving]
    variables += [module.get_parameter(name) for name in parameters]
    arguments = [variables[moving.index(i)] if i in moving else each for i, each in enumerate(inputs)]
    with sdpa_kernel(SDPBackend.MATH):
        loss = loss_of(arguments, module, weights)
    first = _gradients(loss, variables, create_graph=True)
    directions = [tensor(*each.shape, dtype=each.dtype, seed=200 + i) for i, each in enumerate(variables)]
    second = _gradients(sum((g * d).sum() for g, d in zip(first, directions, strict=True)), variables)

    @quick_jit
    def derivatives(points: Any, along: Any) -> Any:
        everything = jax.value_and_grad(ours, tuple(range(len(variables))), has_aux=True)
        return jax.jvp(everything, points, along)

    points, along = (tuple(to_jax(each) for each in held) for held in (variables, directions))
    ((value, written), gradients), (_, products) = derivatives(points, along)
    tolerance = tolerance or max(TOLERANCE[each.dtype] for each in variables)
    _close(value, loss, tolerance, "value")
    for where, mine, their in zip(moving + parameters, gradients, first, strict=True):
        _close(mine, their, 10 * tolerance, f"gradient of {where}")
    for where, mine, their in zip(moving + parameters, products, second, strict=True):
        _close(mine, their, 100 * tolerance, f"Hessian product of {where}")
    for name, mine in written.items():
        their = module.get_buffer(name.removeprefix("model."))
        assert mine.dtype == to_jax(their).dtype, name
        _close(mine, their, tolerance, name)
