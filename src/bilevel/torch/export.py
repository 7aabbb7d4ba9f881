"""Export of a loss to a graph of ATen operations."""

import inspect
import operator
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.node import map_arg

from bilevel.torch import errors
from bilevel.torch._table import TABLE
from bilevel.torch.errors import ExportError
from bilevel.torch.guards import guarded
from bilevel.torch.types import torch_type

ATEN, ORDERS = torch.ops.aten, torch.ops.higher_order
STOP = "bilevel_stop"  # mark of a node whose results have no derivative
DETACHES = (ATEN.detach.default, ATEN.detach_.default)
REGIONS = {ORDERS.wrap_with_set_grad_enabled: 1, ORDERS.wrap_with_autocast: 4}  # the place of their graph
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
        buffers = [(part, name, each) for part in self.modules() for name, each in part._buffers.items()]
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
        for part, name, before in buffers:
            now = part._buffers.get(name)
            if now is not before and now is not None and before is not None:  # torch.export sees only writes
                part._buffers[name] = before.copy_(now.detach())
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
    with guarded(level, modules["model"]):
        exported = torch.export.export(module, examples)
    _mark_stops(exported.graph_module, False, _variables(exported, len(jax.tree.leaves(x))))
    with guarded(level, modules["model"]):
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


def _variables(exported: torch.export.ExportedProgram, leaves: int) -> set[torch.fx.Node]:
    """Return the inputs of the graph with derivatives: parameters and the first leaves, which are x."""
    specs = exported.graph_signature.input_specs
    given = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT][:leaves]
    names = {spec.arg.name for spec in specs if spec.kind is InputKind.PARAMETER} | set(given)
    return {node for node in exported.graph.nodes if node.op == "placeholder" and node.name in names}


def _mark_stops(part: torch.fx.GraphModule, stopped: bool, moving: set[torch.fx.Node]) -> None:
    """Mark the nodes that torch does not differentiate. Decompositions keep marks but drop `detach` and `no_grad`.

    `moving` has the nodes with derivatives. A write that torch hides from their derivatives is an error: in the graph,
    the result of the write would have no derivative at all.
    """
    for node in part.graph.nodes:
        if node.op != "call_function":
            continue
        now = stopped or node.target in DETACHES
        if node.target in REGIONS:
            place = REGIONS[node.target]
            now = not node.args[0] if place == 1 else stopped
            region = getattr(part, node.args[place].target)
            inputs = [each for each in region.graph.nodes if each.op == "placeholder"]
            given = zip(inputs, node.args[place + 1 :], strict=True)
            _mark_stops(region, now, {inside for inside, outside in given if outside in moving})
            if place == 4 and node.args[2]:
                _cast_inputs(region, node.args[1])
        if getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            owner, detached = _owner(node.args[0])
            if (stopped or detached) and owner in moving:
                raise ExportError(errors.IN_PLACE + errors.line_of_node(node.meta.get("stack_trace")))
            moving |= {owner} if moving & set(node.all_input_nodes) and not now else set()
        if not now and moving & set(node.all_input_nodes):
            moving.add(node)
        if now:
            node.meta["custom"] = {**node.meta.get("custom", {}), STOP: True}


def _owner(node: torch.fx.Node) -> tuple[torch.fx.Node, bool]:
    """Return the node whose tensor this one views, and whether a `detach` is between them."""
    detached = False
    while (
        (schema := getattr(node.target, "_schema", None)) and schema.returns and schema.returns[0].alias_info
    ):
        detached |= node.target in DETACHES
        node = node.args[0]  # pyright: ignore[reportAssignmentType]
    return node, detached


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
                node.args = map_arg(node.args, cast)
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
    outside = _captured(module.loss)
    inputs, leaf = [], 0
    for spec in signature.input_specs:
        node = places[spec.arg.name]
        if spec.kind is InputKind.USER_INPUT:
            inputs.append((node, "leaf", leaf))
            leaf += 1
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            inputs.append((node, "tensor", spec.target))
        else:
            constant: Any = exported.constants[str(spec.target)]
            if name := parameters.get(constant.data_ptr()):
                raise ExportError(errors.PARAMETER.format(level=level, name=name.partition(".")[2]))
            if name := outside.get(constant.data_ptr()):
                raise ExportError(errors.OUTSIDE.format(level=level, name=name))
            inputs.append((node, "constant", constant))
    results, written = [], {}
    for spec in signature.output_specs:
        node = places.get(getattr(spec.arg, "name", None), spec.arg)
        if spec.kind is OutputKind.USER_OUTPUT:
            results.append(node)
        elif spec.kind is OutputKind.BUFFER_MUTATION:
            written[spec.target] = node
        elif spec.kind is OutputKind.PARAMETER_MUTATION:
            raise ExportError(errors.WRITTEN.format(level=level, name=str(spec.target).partition(".")[2]))
    nodes = tuple(
        node for node in exported.graph.nodes if node.op == "call_function" and str(node.target) not in CHECKS
    )
    random = any(_is_random(node) for node in nodes)
    return Graph(nodes, tuple(inputs), tuple(results), module.found.metrics, written, random)


def _is_random(node: torch.fx.Node) -> bool:
    random = node.target is not operator.getitem and TABLE[str(node.target)].random
    return random(*node.args, **node.kwargs) if callable(random) else random


def _captured(loss: Callable[..., Any]) -> dict[int, str]:
    """Return the names of tensors that require gradients, other than parameters, among the variables of a function."""
    if not isinstance(loss, FunctionType):
        return {}
    found = inspect.getclosurevars(loss)
    held = {**found.globals, **found.nonlocals}
    tensors = {name: each for name, each in held.items() if isinstance(each, torch.Tensor) and each.numel()}
    wanted = lambda each: each.requires_grad and not isinstance(each, torch.nn.Parameter)
    return {each.data_ptr(): name for name, each in tensors.items() if wanted(each)}
