"""New tensors, copies and conversions of type."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevel.torch._table.registry import canonical, register


def number(value):
    """Return a number as an array. Without x64, integers are limited to 32 bits."""
    if isinstance(value, int) and not isinstance(value, bool):
        limits = jnp.iinfo(canonical("int64"))
        return jnp.asarray(min(max(value, limits.min), limits.max), limits.dtype)
    return jnp.asarray(value)


@register("aten.full.default")
def full(size, value, dtype=None):
    return jnp.broadcast_to(number(value), size)


@register("aten.full_like.default", "aten.fill.Scalar", "aten.fill.Tensor")
def full_like(a, value, dtype=None):
    return full(a.shape, value)


@register("aten.new_full.default")
def new_full(a, size, value, dtype=None):
    return full(size, value)


for name, value in {"zeros": 0, "ones": 1, "empty": 0}.items():
    overload = "memory_format" if name == "empty" else "default"
    register(f"aten.{name}.{overload}")(lambda size, dtype=None, value=value: full(size, value))
    register(f"aten.{name}_like.default")(lambda a, dtype=None, value=value: full(a.shape, value))
    register(f"aten.new_{name}.default")(lambda a, size, dtype=None, value=value: full(size, value))


@register("aten.empty_strided.default", "aten.empty_permuted.default")
def empty(size, order, dtype=None):
    return full(size, 0)


@register("aten.scalar_tensor.default")
def scalar_tensor(value, dtype=None):
    return number(value)


@register("aten.arange.start_step")
def arange(start, end, step=1, dtype=None):
    count = max(int(np.ceil((end - start) / step)), 0)
    return start + step * jnp.arange(count)


register("aten.arange.default")(lambda end, dtype=None: arange(0, end))
register("aten.arange.start")(lambda start, end, dtype=None: arange(start, end))


@register("aten.linspace.default")
def linspace(start, end, steps, dtype=None):
    return jnp.linspace(start, end, steps)


@register("aten.eye.default", "aten.eye.m")
def eye(rows, columns=None, dtype=None):
    return jnp.eye(rows, columns)


def copy(a, dtype=None, non_blocking=False):
    return a  # the interpreter converts it


for name in ("_to_copy", "clone", "contiguous", "lift_fresh", "lift_fresh_copy"):
    register(f"aten.{name}.default")(copy)

register("aten.detach.default")(lax.stop_gradient)


@register("aten.copy.default")
def copy_from(a, source, non_blocking=False):
    return jnp.broadcast_to(source, a.shape)
