"""Pooling. Axes count from the end, because the batch may be left out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevel.torch._table.registry import canonical, register, wide
from bilevel.torch._table.resampling import along


def _each(value, count):
    """Return the value of each axis: one value means all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * (count // len(values))


def _starts(size, kernel, stride, pad, dilation, ceil):
    """Return where the windows begin in the padded image."""
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil else 0)) // stride + 1
    late = ceil and (count - 1) * stride >= size + pad  # no window begins in the padding on the right
    return stride * np.arange(count - late)


def _max_pool(count):
    def max_pool(a, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
        given = (_each(each, count) for each in (kernel_size, stride or kernel_size, padding, dilation))
        values, indices = _indexed(a, count)
        for axis, (kernel, step, pad, apart) in _last_first(zip(*given, strict=True)):
            starts = _starts(a.shape[axis], kernel, step, pad, apart, ceil_mode)
            margin = [(0, 0, 0)] * a.ndim
            margin[axis] = (pad, max(int(starts[-1]) + apart * (kernel - 1) + 1 - pad - a.shape[axis], 0), 0)
            pair = lax.pad(values, _lowest(a.dtype), margin), lax.pad(indices, indices.dtype.type(0), margin)
            values, indices = _largest(*pair, axis, starts, np.full(len(starts), kernel), apart)
        return values, indices

    return max_pool


def _adaptive_max_pool(count):
    def adaptive_max_pool(a, output_size):
        values, indices = _indexed(a, count)
        for axis, out in _last_first(_each(output_size, count)):
            starts, sizes = _shares(a.shape[axis], out)
            values, indices = _largest(values, indices, axis, starts, sizes)
        return values, indices

    return adaptive_max_pool


def _last_first(values):
    """Return pairs of an axis and its value. Rows come last: the first of equal entries is in the first row."""
    values = list(values)
    return zip(range(-1, -1 - len(values), -1), reversed(values), strict=True)


def _indexed(a, count):
    sizes = a.shape[a.ndim - count :]
    indices = jnp.arange(np.prod(sizes), dtype=canonical("int64")).reshape(sizes)
    return a, jnp.broadcast_to(indices, a.shape)


def _lowest(dtype):
    return np.array(-np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min, dtype)


def _largest(values, indices, axis, starts, sizes, apart=1):
    """Return the largest value of each window along an axis, the first of equal ones, and its index.

    A window is the union of two overlapping ones, whose sizes are a power of two. This takes fewer operations than
    `lax.reduce_window`, whose derivative is slow.
    """
    pair, reach = (values, indices), 1
    while 2 * reach < sizes.max():
        places = np.arange(values.shape[axis] - apart * (2 * reach - 1))
        pair, reach = _larger(_at(pair, places, axis), _at(pair, places + apart * reach, axis)), 2 * reach
    first = _at(pair, starts, axis)
    return first if sizes.max() == 1 else _larger(first, _at(pair, starts + apart * (sizes - reach), axis))


def _at(pair, places, axis):
    steps = set(np.diff(places).tolist()) or {1}
    if len(steps) == 1 and min(steps) > 0:
        return [lax.slice_in_dim(a, places[0], places[-1] + 1, min(steps), axis) for a in pair]
    return [jnp.take(a, places, axis) for a in pair]


def _larger(first, second):
    is_second = (second[0] > first[0]) | (second[0] != second[0])  # torch keeps NaN
    return [jnp.where(is_second, b, a) for a, b in zip(first, second, strict=True)]


def _avg_pool(count):
    def avg_pool(a, kernel_size, stride=(), padding=0, ceil_mode=False, include=True, divisor=None):
        sizes, kernels, pads = a.shape[a.ndim - count :], _each(kernel_size, count), _each(padding, count)
        strides, counts, margins = _each(stride or kernels, count), [], []
        for size, kernel, stride_, pad in zip(sizes, kernels, strides, pads, strict=True):
            starts = _starts(size, kernel, stride_, pad, 1, ceil_mode) - pad
            ends = np.minimum(starts + kernel, size + pad)
            inner = np.minimum(ends, size) - np.maximum(starts, 0)
            counts.append(ends - starts if include else np.maximum(inner, 1))
            margins.append((pad, max(int(starts[-1]) + kernel - size, 0)))
        batch = a.ndim - count
        window, strides, margins = (
            (1,) * batch + (*kernels,),
            (1,) * batch + (*strides,),
            [(0, 0)] * batch + margins,
        )
        a = wide(a)
        total = lax.reduce_window(a, np.zeros((), a.dtype), lax.add, window, strides, margins)
        return total / jnp.asarray(divisor or functools.reduce(np.multiply.outer, counts), a.dtype)

    return avg_pool


def _adaptive_avg_pool(count):
    def adaptive_avg_pool(a, output_size):
        out, a = _each(output_size, count), wide(a)
        for axis in range(-count, 0):
            starts, sizes = _shares(a.shape[axis], out[axis])
            places = np.arange(a.shape[axis]) - starts[:, None]
            a = along(a, ((places >= 0) & (places < sizes[:, None])) / sizes[:, None], axis)
        return a

    return adaptive_avg_pool


def _shares(size, out):
    """Return the starts and the sizes of adaptive windows, which overlap where `out` does not divide `size`."""
    starts = np.arange(out) * size // out
    return starts, -(np.arange(1, out + 1) * -size // out) - starts


for _count in (1, 2, 3):
    register(f"aten.max_pool{_count}d_with_indices.default")(_max_pool(_count))
    register(f"aten.adaptive_max_pool{_count}d.default")(_adaptive_max_pool(_count))
    register(f"aten.avg_pool{_count}d.default")(_avg_pool(_count))
    register(*[f"aten.{p}adaptive_avg_pool{_count}d.default" for p in ("", "_")])(_adaptive_avg_pool(_count))


@register("aten.max_unpool2d.default", "aten.max_unpool3d.default")
def max_unpool(a, indices, output_size, *unused):
    batch = a.shape[: a.ndim - len(output_size)]
    a, indices = (each.reshape(*batch, -1).reshape(int(np.prod(batch)), -1) for each in (a, indices))
    place = jax.vmap(lambda plane, index: jnp.zeros(int(np.prod(output_size)), a.dtype).at[index].set(plane))
    return place(a, indices).reshape(*batch, *output_size)
