"""Export of a loss to a graph of ATen operations."""

import contextlib
import io
import logging
import operator
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import jax
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.nn.modules.batchnorm import _BatchNorm

from bilevel.torch import errors
from bilevel.torch._table import TABLE
from bilevel.torch.errors import ExportError
from bilevel.torch.types import torch_type

ONE_AT_A_TIME = threading.Lock()
ATEN, ORDERS = torch.ops.aten, torch.ops.higher_order
STOP = "bilevel_stop"  # mark of a node whose results have no derivative
CHECKS = {"aten._assert_tensor_metadata.default"}  # nodes without a result


class Graph(NamedTuple):
    """An exported loss."""

    nodes: tuple[torch.fx.Node, ...]
    inputs: tuple[
        tuple[torch.fx.Node, str, Any], ...
    ]  # node, kind ("leaf", "tensor" or "constant"), which one
    results: tuple[Any, ...]  # of the nodes: the loss, then the metrics
    metrics: tuple[str, ...]
    written: dict[str, Any]  # the new values of buffers, by name
    random: bool  # whether a node needs a key


class Loss(torch.nn.Module):
    """The loss as a module of the leaves of its arguments, so that torch.export lifts the parameters."""

    def __init__(self, modules: dict[str, torch.nn.Module], loss: Callable[..., Any], level: str, tree: Any):
        super().__init__()
        self.modules_by_name, self.level, self.tree = tuple(modules), level, tree
        self.loss = _as_forward(loss)
        self.found = SimpleNamespace(metrics=())  # torch.export restores plain attributes
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, batch = jax.tree.unflatten(self.tree, leaves)
        x = getattr(self, "x") if "x" in self.modules_by_name else x  # noqa: B009
        out = self.loss(x, self.model) if batch is None else self.loss(x, self.model, batch)
        value, metrics = out if isinstance(out, tuple) else (out, {})
        if not isinstance(value, torch.Tensor) or not isinstance(metrics, dict):
            kinds = ", ".join(type(each).__name__ for each in (out if isinstance(out, tuple) else (out,)))
            raise ExportError(
                f"the {self.level} loss must return a tensor, or (tensor, metrics) with a dict of tensors by name, but "
                f"returned {kinds}"
            )
        self.found.metrics = tuple(metrics)
        return (value, *(torch.as_tensor(each) for each in metrics.values()))


def export(
    modules: dict[str, torch.nn.Module], loss: Callable[..., Any], level: str, x: Any, batch: Any, device: Any
) -> Graph:
    """Return the graph of `loss(x, model, batch)`, for arguments with the shapes and types of these.

    Raises:
        ExportError: torch cannot export the loss, or the table lacks an operation.
    """
    leaves, tree = jax.tree.flatten((x, batch))
    module = Loss(modules, loss, level, tree)
    examples = tuple(torch.zeros(each.shape, dtype=torch_type(each.dtype), device=device) for each in leaves)
    for each in examples[: len(jax.tree.leaves(x))]:
        each.requires_grad_(True)
    with ONE_AT_A_TIME, _explained(level), _quiet(), _adapted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module, examples)
        _mark_stops(exported.graph_module, False)
        table = torch.export.default_decompositions()
        for op in [op for op in table if str(op) in TABLE]:
            del table[op]
        exported = exported.run_decompositions(table)
    _check_operations(exported.graph_module.graph)
    return _graph(exported, module, level)


def _as_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of the function with the name `forward`: torch.export records lines only of such functions."""
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace(co_name="forward")
    twin = FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


@contextlib.contextmanager
def _adapted() -> Iterator[None]:
    """Replace two parts of torch that cannot be exported, or only slowly."""
    from torch._decomp import decompositions

    batch_norm, recurrent = _BatchNorm.forward, decompositions._rnn_helper

    def average(self: Any, a: torch.Tensor) -> torch.Tensor:
        """Evaluate batch norm. With `momentum=None` torch reads its counter as a number, which a graph cannot."""
        if self.momentum is not None or self.running_mean is None or not self.training:
            return batch_norm(self, a)
        self._check_input_dim(a)
        self.num_batches_tracked.add_(1)
        seen, axes = a.detach().to(self.running_mean.dtype), [0, *range(2, a.ndim)]
        for old, new in ((self.running_mean, seen.mean(axes)), (self.running_var, seen.var(axes))):
            old.add_((new - old) / self.num_batches_tracked)
        return torch.nn.functional.batch_norm(a, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def shapes(a: torch.Tensor, hidden: Any, *others: Any) -> Any:
        """Return tensors with the shapes of a recurrent layer's results: torch would go through all times."""
        if a.ndim == 2:  # a packed sequence, which the table does not have as a whole
            return recurrent(a, hidden, *others)
        *_, bidirectional, batch_first, _ = others
        first, times = hidden[0], a.shape[int(batch_first)]
        h = first[0] if isinstance(first, tuple) else first  # an LSTM has a pair
        out = h.repeat(times, 1, 1 + bidirectional)
        return (out.transpose(0, 1) if batch_first else out), list(hidden)

    with (
        mock.patch.object(_BatchNorm, "forward", average),
        mock.patch.object(decompositions, "_rnn_helper", shapes),
    ):
        yield


def _mark_stops(part: torch.fx.GraphModule, stopped: bool) -> None:
    """Mark the nodes that torch does not differentiate. Decompositions keep marks but drop `detach` and `no_grad`."""
    for node in part.graph.nodes:
        if node.op != "call_function":
            continue
        now = stopped or node.target in (ATEN.detach.default, ATEN.detach_.default)
        if node.target is ORDERS.wrap_with_set_grad_enabled:
            now = not node.args[0]
            _mark_stops(getattr(part, node.args[1].target), now)
        elif node.target is ORDERS.wrap_with_autocast:
            _mark_stops(region := getattr(part, node.args[4].target), stopped)
            if node.args[2]:
                _cast_inputs(region, node.args[1])
        if now:
            node.meta["custom"] = {**node.meta.get("custom", {}), STOP: True}


def _cast_inputs(region: torch.fx.GraphModule, dtype: torch.dtype) -> None:
    """Cast the inputs of nodes whose results autocast makes narrow. Otherwise it misses operations that stay whole."""

    def cast(arg: torch.fx.Node) -> torch.fx.Node:
        if getattr(arg.meta.get("val"), "dtype", None) != torch.float32:
            return arg
        return region.graph.call_function(ATEN._to_copy.default, (arg,), {"dtype": dtype})

    for node in region.graph.nodes:
        out = node.meta.get("val")
        first = out[0] if isinstance(out, tuple | list) and out else out
        if str(node.target) in TABLE and getattr(first, "dtype", None) == dtype:
            with region.graph.inserting_before(node):
                node.args = torch.fx.node.map_arg(node.args, cast)
    region.recompile()


def is_stopped(node: torch.fx.Node) -> bool:
    return STOP in node.meta.get("custom", {})


def _check_operations(graph: torch.fx.Graph) -> None:
    """Raise for the first operation that the table lacks, or whose shape depends on the data."""
    for node in graph.nodes:
        if node.op != "call_function" or str(node.target) in CHECKS or node.target is operator.getitem:
            continue
        values = jax.tree.leaves(node.meta.get("val"))
        sizes = [size for value in values for size in getattr(value, "shape", (value,))]
        if any(not isinstance(size, int) for size in sizes):
            raise ExportError(errors.SHAPE + errors.line_of_node(node.meta.get("stack_trace")))
        if str(node.target) not in TABLE:
            name = str(node.target)
            line = errors.line_of_node(node.meta.get("stack_trace"))
            raise ExportError(f"the operation {name}{line} {errors.UNKNOWN.format(name=name)}")


def _graph(exported: torch.export.ExportedProgram, module: Loss, level: str) -> Graph:
    signature = exported.graph_signature
    places = {node.name: node for node in exported.graph.nodes}
    parameters = {p.data_ptr(): name for name, p in module.named_parameters() if p.numel()}
    inputs, leaf = [], 0
    for spec in signature.input_specs:
        node = places[spec.arg.name]
        if spec.kind is InputKind.USER_INPUT:
            inputs.append((node, "leaf", leaf))
            leaf += 1
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            inputs.append((node, "tensor", spec.target))
        else:
            constant = exported.constants[spec.target]
            if name := parameters.get(constant.data_ptr()):
                raise ExportError(errors.PARAMETER.format(level=level, name=name.partition(".")[2]))
            inputs.append((node, "constant", constant))
    results, written = [], {}
    for spec in signature.output_specs:
        node = places.get(getattr(spec.arg, "name", None), spec.arg)
        if spec.kind is OutputKind.USER_OUTPUT:
            results.append(node)
        elif spec.kind is OutputKind.BUFFER_MUTATION:
            written[spec.target] = node
        elif spec.kind is OutputKind.PARAMETER_MUTATION:
            raise ExportError(errors.WRITTEN.format(level=level, name=spec.target.partition(".")[2]))
    nodes = tuple(
        node for node in exported.graph.nodes if node.op == "call_function" and str(node.target) not in CHECKS
    )
    random = any(_is_random(node) for node in nodes)
    return Graph(nodes, tuple(inputs), tuple(results), module.found.metrics, written, random)


def _is_random(node: torch.fx.Node) -> bool:
    random = node.target is not operator.getitem and TABLE[str(node.target)].random
    return random(*node.args, **node.kwargs) if callable(random) else random


@contextlib.contextmanager
def _explained(level: str) -> Iterator[None]:
    """Raise torch's errors about the export in one line, with the user's line. Others are the user's."""

    def refuse(cls: type, *arguments: Any, **named: Any) -> Any:
        raise ExportError(errors.OWN_FUNCTION.format(name=cls.__name__))

    grad = torch.autograd.grad

    def differentiate(*arguments: Any, create_graph: bool = False, **named: Any) -> Any:
        if not create_graph:
            raise ExportError(errors.GRADIENT)
        return grad(*arguments, create_graph=True, **named)

    try:
        with (
            mock.patch.object(torch.autograd.Function, "apply", classmethod(refuse)),
            mock.patch.object(torch.autograd, "grad", differentiate),
        ):
            yield
    except ExportError as error:
        raise ExportError(str(error) + errors.line_of_error(error)) from None
    except Exception as error:
        from torch.fx.experimental.symbolic_shapes import (
            GuardOnDataDependentSymNode,  # it changes warning filters
        )

        if isinstance(error, GuardOnDataDependentSymNode):
            raise ExportError(errors.BRANCH + errors.line_of_error(error)) from None
        if errors.is_of_user(error):
            raise
        first = str(error).strip().partition("\n")[0].rstrip(".")
        line = errors.line_of_error(error)
        raise ExportError(errors.FAILED.format(level=level, error=first, line=line)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide torch's own reports of an export, such as a dump of the graph."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)
