"""Interpolation, sampling, padding and rearrangement of images."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevel.torch._table.registry import register, wide


def along(a, matrix, axis):
    """Return the products of a constant matrix with the lines of the array along this axis."""
    matrix = jnp.asarray(matrix, a.dtype)
    return jnp.moveaxis(jnp.tensordot(a, matrix, ((axis,), (1,)), precision="highest"), -1, axis)


# Interpolation. A rule returns a matrix (out, size) for one axis; `step` is the distance between two outputs.


def _linear(size, out, step, corners):
    at = step * np.arange(out) if corners else np.maximum(step * (np.arange(out) + 0.5) - 0.5, 0)
    return _tent(np.minimum(at, size - 1)[:, None] - np.arange(size))


def _cubic(size, out, step, corners):
    at = step * np.arange(out) if corners else step * (np.arange(out) + 0.5) - 0.5
    first, matrix = np.floor(at).astype(int), np.zeros((out, size))
    for offset, weights in enumerate(_cubic_weights(at - first), -1):
        np.add.at(matrix, (np.arange(out), np.clip(first + offset, 0, size - 1)), weights)
    return matrix


def _antialiased(kernel, reach):
    def rule(size, out, step, corners):
        middle, scale, places = step * (np.arange(out)[:, None] + 0.5), max(step, 1.0), np.arange(size)
        first, end = (np.trunc(middle + sign * reach * scale + 0.5) for sign in (-1, 1))
        matrix = kernel((places - middle + 0.5) / scale) * (first <= places) * (places < end)
        return matrix / matrix.sum(1, keepdims=True)

    return rule


def _tent(t):
    return np.maximum(1 - np.abs(t), 0)


def _bump(t, sharpness=-0.5):  # torch's sharpness with antialiasing; without it is -0.75
    t = np.abs(t)
    return np.where(t <= 1, _near(t, sharpness), np.where(t < 2, _far(t, sharpness), 0))


def _near(t, sharpness):
    return ((sharpness + 2) * t - (sharpness + 3)) * t * t + 1


def _far(t, sharpness):
    return ((sharpness * t - 5 * sharpness) * t + 8 * sharpness) * t - 4 * sharpness


def _cubic_weights(t, sharpness=-0.75):
    """Return the weights of the four entries around a place, which is t after the second of them."""
    return _far(t + 1, sharpness), _near(t, sharpness), _near(1 - t, sharpness), _far(2 - t, sharpness)


def _weighted(rule):
    def interpolate(a, size, corners, *factors):
        resize = lambda a, axis, out, step: along(a, rule(a.shape[axis], out, step, corners), axis)
        return _resized(wide(a), size, factors, corners, resize)

    return interpolate


def _nearest(shift):
    def resize(a, axis, out, step):
        outputs = np.arange(out, dtype=np.float32) + np.float32(shift)  # torch computes places in float32
        places = np.floor(outputs * np.float32(step))
        places = np.minimum(places, a.shape[axis] - 1).astype(int)
        times = max(out // a.shape[axis], 1)
        if np.array_equal(places, np.repeat(np.arange(a.shape[axis]), times)):
            return jnp.repeat(a, times, axis)  # faster than indexing
        return jnp.take(a, places, axis)

    return lambda a, size, *factors: _resized(a, size, factors, False, resize)


def _resized(a, output_size, factors, corners, resize):
    if factors and isinstance(factors[0], list | tuple):
        factors = factors[0]  # the overload `vec` has a list
    for axis, size in enumerate(a.shape[2:], 2):
        factor = factors[axis - 2] if factors and factors[0] is not None else None
        out = int(size * factor) if output_size is None else output_size[axis - 2]
        step = 1 / factor if factor else size / out
        step = (size - 1) / (out - 1) if corners and out > 1 else 0.0 if corners else step
        a = resize(a, axis, out, step)
    return a


for _name, _function in {
    **{f"upsample_nearest{n}d": _nearest(0) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": _nearest(0.5) for n in (1, 2, 3)},
    **{f"upsample_{name}": _weighted(_linear) for name in ("linear1d", "bilinear2d", "trilinear3d")},
    "upsample_bicubic2d": _weighted(_cubic),
    "_upsample_bilinear2d_aa": _weighted(_antialiased(_tent, 1)),
    "_upsample_bicubic2d_aa": _weighted(_antialiased(_bump, 2)),
}.items():
    register(f"aten.{_name}.default", f"aten.{_name}.vec")(_function)


# Sampling at places that a network computes. Modes are 0 (linear), 1 (nearest) and 2 (cubic).

WEIGHTS = {0: lambda t: (1 - t, t), 1: lambda t: (jnp.ones_like(t),), 2: _cubic_weights}


@register("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(a, grid, mode, padding, corners):
    return jax.vmap(lambda image, places: _sampled(image, places, mode, padding, corners))(a, grid)


def _sampled(image, grid, mode, padding, corners):
    channels, *sizes = image.shape
    shape = grid.shape[:-1]
    index, weight = (
        jnp.zeros((1, *shape), jnp.int32),
        jnp.ones((1, *shape), grid.dtype),
    )  # of all entries to add
    for i, size in enumerate(sizes, 1):
        at = ((grid[..., -i] + 1) * (size - 1 if corners else size) - (not corners)) / 2
        at = at if mode == 2 else _inside(at, size, padding, corners)
        first = lax.stop_gradient(jnp.round(at) if mode == 1 else jnp.floor(at))
        weights = jnp.stack(WEIGHTS[mode](at - first))
        places = jnp.stack([first + offset - (mode == 2) for offset in range(len(weights))])
        places = _inside(places, size, padding, corners) if mode == 2 else places
        weights = jnp.where((places >= 0) & (places < size), weights, 0)
        places = jnp.clip(places, 0, size - 1).astype(jnp.int32)
        index = (index[:, None] * size + places).reshape(-1, *shape)
        weight = (weight[:, None] * weights).reshape(-1, *shape)
    return jnp.sum(image.reshape(channels, -1)[:, index] * weight, 1)


def _inside(at, size, padding, corners):
    """Return places outside of the image as they are (padding 0), at its border (1), or reflected into it (2)."""
    if padding == 2:
        low, span = (0, size - 1) if corners else (-0.5, size)
        distance = jnp.where(at < low, low - at, at - low)
        turns = lax.stop_gradient(jnp.floor(distance / max(span, 1)))
        distance = distance - turns * span
        at = jnp.where(turns % 2 == 0, low + distance, low + span - distance)
    return jnp.where(at <= 0, 0, jnp.where(at >= size - 1, size - 1, at)) if padding else at


@register("aten.affine_grid_generator.default")
def affine_grid_generator(theta, size, corners):
    sizes = size[2:]
    axes = [np.linspace(-1, 1, n) * (1 if corners else (n - 1) / n) if n > 1 else np.zeros(1) for n in sizes]
    places = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(sizes)], -1)
    return jnp.einsum("...j,bij->b...i", jnp.asarray(places, theta.dtype), theta)


# Padding. The amounts begin with the last axis; negative ones crop.


@register("aten.constant_pad_nd.default")
def constant_pad_nd(a, pad, value=0):
    return lax.pad(a, jnp.asarray(value or 0, a.dtype), [(*each, 0) for each in _amounts(a, pad)])


def _amounts(a, pad):
    return [(0, 0)] * (a.ndim - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))[::-1]


def _pad_with(mode):
    def pad_(a, pad):
        amounts = _amounts(a, pad)
        a = jnp.pad(a, [(max(low, 0), max(high, 0)) for low, high in amounts], mode)
        return constant_pad_nd(a, [min(each, 0) for pair in reversed(amounts) for each in pair])

    return pad_


PADS = {"reflect": _pad_with("reflect"), "replicate": _pad_with("edge"), "circular": _pad_with("wrap")}
for _name, _mode in (("reflection", "reflect"), ("replication", "replicate")):
    register(*[f"aten.{_name}_pad{n}d.default" for n in (1, 2, 3)])(PADS[_mode])
register("aten._pad_circular.default")(PADS["circular"])


@register("aten.pad.default")
def pad_(a, pad, mode="constant", value=None):
    return constant_pad_nd(a, pad, value) if mode == "constant" else PADS[mode](a, pad)


# Rearrangement.


@register("aten.pixel_shuffle.default")
def pixel_shuffle(a, factor):
    *batch, channels, height, width = a.shape
    a = a.reshape(*batch, channels // factor**2, factor, factor, height, width)
    a = jnp.moveaxis(a, (-4, -3), (-3, -1))  # (..., channels, height, factor, width, factor)
    return a.reshape(*batch, channels // factor**2, height * factor, width * factor)


@register("aten.pixel_unshuffle.default")
def pixel_unshuffle(a, factor):
    *batch, channels, height, width = a.shape
    a = a.reshape(*batch, channels, height // factor, factor, width // factor, factor)
    a = jnp.moveaxis(a, (-3, -1), (-4, -3))  # (..., channels, factor, factor, height, width)
    return a.reshape(*batch, channels * factor**2, height // factor, width // factor)


@register("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def channel_shuffle(a, groups):
    return a.reshape(a.shape[0], groups, -1, *a.shape[2:]).swapaxes(1, 2).reshape(a.shape)


@register("aten.im2col.default")
def im2col(a, kernel, dilation, padding, stride):
    a = constant_pad_nd(a, [each for p in reversed(padding) for each in (p, p)])
    sizes = zip(a.shape[-2:], kernel, dilation, stride, strict=True)
    rows, columns = ([slice(i * d, i * d + n - d * (k - 1), s) for i in range(k)] for n, k, d, s in sizes)
    blocks = jnp.stack([a[..., row, column] for row in rows for column in columns], -3)
    return blocks.reshape(*a.shape[:-3], a.shape[-3] * math.prod(kernel), -1)


@register("aten.col2im.default")
def col2im(a, output_size, kernel, dilation, padding, stride):
    image = jax.ShapeDtypeStruct((*a.shape[:-2], a.shape[-2] // math.prod(kernel), *output_size), a.dtype)
    return jax.linear_transpose(lambda image: im2col(image, kernel, dilation, padding, stride), image)(a)[0]
