"""The table of translations, and torch's rules for types."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Entry(NamedTuple):
    """Translation of one operation."""

    function: Callable[..., Any]
    random: bool | Callable[..., bool]  # its first argument is a key, which these arguments need


TABLE: dict[str, Entry] = {}


def register(
    *names: Any, random: bool | Callable[..., bool] = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the translation of operations of torch, as a decorator.

        @bl.torch.register(torch.ops.aten.special_erfcx.default)
        def erfcx(a):
            return jnp.exp(a**2) * jax.scipy.special.erfc(a)

    The function takes the arguments of the operation in their order, with JAX arrays in place of tensors, and
    returns an array, or a tuple where the operation returns several tensors. The interpreter converts the
    result to torch's type. Keywords for devices, layouts and memory formats are left out. An operation in the table is
    never decomposed.

    Args:
        *names: operations, such as `torch.ops.aten.sin.default`, or their names, such as "aten.sin.default".
        random: whether the function takes a random key as its first argument. A function of the other arguments returns
            whether they need it; else the key may be None.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        TABLE.update({str(name): Entry(function, random) for name in names})
        return function

    return add


def result_type(*values: Any) -> Any:
    """Return the type that torch computes with: numbers and 0-d tensors count only by their category."""
    ranks: list[list[Any]] = [[], [], []]  # tensors with dimensions, 0-d tensors, numbers
    for value in values:
        if isinstance(value, bool | int | float | complex):
            ranks[2].append(_type_of_number(value))
        else:
            ranks[0 if value.ndim else 1].append(value.dtype)
    found: Any = None
    for types in ranks:
        if types:
            best = types[0]
            for each in types[1:]:
                best = jnp.promote_types(best, each)
            found = best if found is None or _category(best) > _category(found) else found
    return found


def promoted(*values: Any) -> list[Any]:
    """Return the values as arrays of the type that torch computes with."""
    dtype = result_type(*values)
    return [jnp.asarray(value, dtype) for value in values]


def as_float(value: Any) -> Any:
    """Return an array of integers or booleans as floats of the default type."""
    return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(default_float())


def default_float() -> Any:
    return jnp.dtype("float32")  # torch's default; a graph states the type if the user chose another


def wide(value: Any) -> Any:
    """Return half-precision floats as float32, in which torch accumulates."""
    return value.astype(jnp.float32) if value.dtype in (jnp.bfloat16, jnp.float16) else value


def canonical(dtype: Any) -> np.dtype:
    """Return the type that JAX uses for it: without x64 there are only 32 bits."""
    return jax.dtypes.canonicalize_dtype(dtype)


def axes_of(dim: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes that a torch argument `dim` means: None or an empty list means all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(each % max(ndim, 1) for each in dims) if ndim else ()


def _type_of_number(value: Any) -> Any:
    if isinstance(value, bool):
        return jnp.dtype(bool)
    if isinstance(value, int):
        return canonical("int64")
    return default_float() if isinstance(value, float) else jnp.dtype("complex64")


def _category(dtype: Any) -> int:
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next(i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))
