"""Parameters and buffers of modules, as dicts of arrays by name."""

import copy
from collections.abc import Mapping
from typing import Any

import jax
import torch

from bilevel.torch.types import TO_JAX, jax_type, to_jax, to_torch


class Tensors:
    """Tensors of a module by name: trainable ones, and all others. A tensor with two names is listed once."""

    def __init__(self, module: torch.nn.Module):
        self.module = module
        self.trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        self.others: dict[str, torch.Tensor] = {**frozen, **dict(module.named_buffers())}
        first = {id(tensor): name for name, tensor in {**self.trained, **self.others}.items()}
        every = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        self.names: dict[str, str] = {name: first[id(tensor)] for name, tensor in every}  # to the first name

    def copy(self, mode: str | None) -> torch.nn.Module:
        """Return a copy of the module that shares its tensors, in training or evaluation mode."""
        memo: dict[int, Any] = {id(each): each for each in (*self.trained.values(), *self.others.values())}
        try:
            twin = copy.deepcopy(self.module, memo)
        except Exception as error:
            raise TypeError(
                f"the module {type(self.module).__name__} cannot be copied ({error}): let it hold only tensors, "
                "modules and plain values"
            ) from error
        return twin if mode is None else twin.train(mode == "train")

    def check_unchanged(self) -> None:
        """Raise if the module has other tensors, or trains others, than when the front was built."""
        now = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        same = now.keys() == self.trained.keys() and all(now[name] is p for name, p in self.trained.items())
        if not same or Tensors(self.module).names != self.names:
            raise ValueError(
                "the module has other parameters or buffers than when the front was built: call bl.torch.front again"
            )

    def check_fit(self, arrays: Any) -> None:
        """Raise if the arrays are not for the tensors of this module."""
        known = {**self.trained, **self.others}
        if not isinstance(arrays, Mapping):
            raise ValueError("the result has no dict of arrays by name: load a result of this front")
        if wrong := [name for name in arrays if name not in known]:
            raise ValueError(
                f"the result has {wrong[0]!r}, which this module has not: load a result of this front"
            )
        if len(arrays) > 1 and (missing := sorted(self.trained.keys() - arrays.keys())):
            raise ValueError(f"the result has no {missing[0]!r}: load a result of this front")
        for name, array in arrays.items():
            given, wanted = tuple(array.shape), tuple(known[name].shape)
            if given != wanted:
                raise ValueError(
                    f"{name!r} has shape {given} in the result and {wanted} in the module: load a result of this "
                    "front; after meta-learning load the start, dataclasses.replace(result, y=result.x)"
                )

    def write(self, arrays: Mapping[str, Any]) -> None:
        """Copy the arrays into the tensors of these names."""
        known = {**self.trained, **self.others}
        with torch.no_grad():
            for name, array in arrays.items():
                known[name].copy_(to_torch(array))


def as_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, jax.Array]:
    return {name: to_jax(tensor) for name, tensor in tensors.items()}


PLAIN = (bool, int, float, str, type(None))


def describe(module: torch.nn.Module) -> tuple[Any, ...]:
    """Return the structure of a module: its text, its classes, and the plain values that it holds."""
    parts = list(module.modules())
    values = [{name: value for name, value in vars(part).items() if type(value) in PLAIN} for part in parts]
    return repr(module), list(dict.fromkeys(type(part) for part in parts)), repr(values)


def check_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise if JAX cannot use a tensor, or would round it."""
    for name, tensor in tensors.items():
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"the parameter {name!r} of the module has no shape yet: call the module on a batch first"
            )
        if tensor.layout is not torch.strided or tensor.dtype not in TO_JAX:
            raise TypeError(
                f"the tensor {name!r} of the module is {tensor.dtype} with layout {tensor.layout}, which JAX has no "
                "array for: convert it to a dense tensor of floats first"
            )
        if tensor.device.type == "meta":
            raise ValueError(
                f"the tensor {name!r} of the module has no values (device meta): load the weights first"
            )
        if tensor.device.type != "cpu" and jax.default_backend() == "cpu":
            raise ValueError(
                f"the tensor {name!r} of the module is on {tensor.device}, and JAX runs on the CPU: call model.cpu(), "
                "or install JAX for that device"
            )
        if tensor.dtype.is_floating_point and jax_type(tensor.dtype).itemsize < tensor.dtype.itemsize:
            raise TypeError(
                f"the tensor {name!r} of the module is float64, and JAX computes in float32: call model.float(), or "
                'jax.config.update("jax_enable_x64", True) first'
            )
