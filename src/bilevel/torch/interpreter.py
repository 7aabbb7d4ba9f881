"""Evaluation of an exported graph with JAX operations."""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch.fx.node import map_aggregate

from bilevel.torch._table import TABLE
from bilevel.torch.export import Graph, is_stopped
from bilevel.torch.types import jax_type, to_jax

PLACES = {"device", "layout", "pin_memory", "memory_format"}  # arguments that JAX does not need


def evaluate(
    graph: Graph, leaves: list[Any], tensors: dict[str, Any], key: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Return the loss and the metrics, and the new values of the buffers that the graph writes."""
    values: dict[torch.fx.Node, Any] = {}
    for node, kind, which in graph.inputs:
        if kind == "leaf":
            values[node] = leaves[which].astype(jax_type(node.meta["val"].dtype))
        else:
            values[node] = tensors[which] if kind == "tensor" else to_jax(which)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for number, node in enumerate(graph.nodes):
            values[node] = _result(node, values, key, number)
    read = lambda held: values[held] if isinstance(held, torch.fx.Node) else jnp.asarray(held)
    written = {name: lax.stop_gradient(read(node)) for name, node in graph.written.items()}
    return [read(node) for node in graph.results], written


def _result(node: torch.fx.Node, values: dict[torch.fx.Node, Any], key: Any, number: int) -> Any:
    read = lambda tree: map_aggregate(tree, lambda a: _argument(a, values))
    if node.target is operator.getitem:
        return values[node.args[0]][node.args[1]]  # pyright: ignore[reportArgumentType]
    named = {name: read(value) for name, value in node.kwargs.items()}
    key = key if key is None else jax.random.fold_in(key, number)
    expected = node.meta["val"]
    out = call(str(node.target), read(node.args), named, _as_tuple(expected), key)
    out = jax.tree.map(lax.stop_gradient, out) if is_stopped(node) else out
    return out if isinstance(expected, tuple | list) else out[0]


def call(
    name: str, args: Sequence[Any], named: dict[str, Any], expected: Sequence[Any], key: Any = None
) -> list[Any]:
    """Return the results of one operation, in the types of the tensors `expected`.

    Raises:
        AssertionError: a result does not have the shape of the expected tensor.
    """
    entry = TABLE[name]
    keys = (key,) if entry.random else ()
    out = entry.function(*keys, *args, **{name: value for name, value in named.items() if name not in PLACES})
    pairs = zip(expected, _as_tuple(out), strict=True)
    return [None if like is None or value is None else _checked(name, like, value) for like, value in pairs]


def _argument(value: Any, values: dict[torch.fx.Node, Any]) -> Any:
    if isinstance(value, torch.fx.Node):
        return values[value]
    return jax_type(value) if isinstance(value, torch.dtype) else value


def _as_tuple(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def _checked(name: str, like: Any, value: Any) -> Any:
    value = jnp.asarray(value)
    if value.shape != tuple(like.shape):
        raise AssertionError(
            f"the translation of {name} returned the shape {value.shape}, torch expects {tuple(like.shape)}"
        )
    return value.astype(jax_type(like.dtype))
