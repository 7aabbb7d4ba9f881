"""Views, permutations, joins and splits."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevel.torch._table.registry import register

for names, function in {
    ("aten.view.default", "aten._unsafe_view.default"): jnp.reshape,
    ("aten.view.dtype",): lambda a, dtype: a.view(dtype),
    ("aten.alias.default",): lambda a: a,
    ("aten.permute.default",): jnp.transpose,
    ("aten.t.default",): lambda a: a.T,
    ("aten.unsqueeze.default",): jnp.expand_dims,
    ("aten.flip.default",): jnp.flip,
    ("aten.repeat.default", "aten.tile.default"): jnp.tile,
    ("aten.repeat_interleave.self_int",): lambda a, repeats, dim=None, output_size=None: jnp.repeat(
        a, repeats, dim
    ),
    ("aten.rot90.default",): lambda a, k=1, dims=(0, 1): jnp.rot90(a, k, tuple(dims)),
    ("aten.stack.default",): jnp.stack,
    ("aten.diagonal.default",): jnp.diagonal,
    ("aten.diag.default",): jnp.diag,
    ("aten.tril.default",): jnp.tril,
    ("aten.triu.default",): jnp.triu,
}.items():
    register(*names)(function)


@register("aten.transpose.int")
def transpose(a, dim0, dim1):
    return jnp.swapaxes(a, dim0, dim1) if a.ndim else a  # torch has dim=0 also for 0-d tensors


@register("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(a, dim=None):
    dims = range(a.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return lax.squeeze(a, sorted({d % a.ndim for d in dims if a.ndim and a.shape[d] == 1}))


@register("aten.expand.default")
def expand(a, sizes, implicit=False):
    known = (1,) * (len(sizes) - a.ndim) + a.shape
    return jnp.broadcast_to(a, [old if new == -1 else new for new, old in zip(sizes, known, strict=True)])


@register("aten.cat.default")
def cat(tensors, dim=0):
    if any(each.ndim > 1 for each in tensors):
        tensors = [each for each in tensors if each.shape != (0,)]  # torch ignores them
    return jnp.concatenate(tensors, dim)


@register("aten.meshgrid.default", "aten.meshgrid.indexing")
def meshgrid(tensors, indexing="ij"):
    return jnp.meshgrid(*(each.reshape(-1) for each in tensors), indexing=indexing)


# Splits and slices


@register("aten.slice.Tensor")
def slice_(a, dim=0, start=None, end=None, step=1):
    first, last, step = slice(start, end, step).indices(a.shape[dim])
    return lax.slice_in_dim(a, first, max(first, last), step, dim)


@register("aten.select.int")
def select(a, dim, index):
    return lax.index_in_dim(a, index, dim, keepdims=False)


@register("aten.split_with_sizes.default", "aten.unsafe_split_with_sizes.default")
def split_with_sizes(a, sizes, dim=0):
    return jnp.split(a, np.cumsum(sizes)[:-1], dim)


@register("aten.split.Tensor", "aten.unsafe_split.Tensor")
def split(a, size, dim=0):
    return jnp.split(a, list(range(size, a.shape[dim], size)) if size else 1, dim)


@register("aten.unbind.int")
def unbind(a, dim=0):
    return [select(a, dim, i) for i in range(a.shape[dim])]


@register("aten.unfold.default")
def unfold(a, dim, size, step):
    if a.ndim == 0:
        return jnp.broadcast_to(a, (size,))
    starts = np.arange(0, a.shape[dim] - size + 1, step)
    windows = jnp.take(a, starts[:, None] + np.arange(size), dim, mode="clip")
    return jnp.moveaxis(windows, dim % a.ndim + 1, -1)


# Repetitions and diagonals


@register("aten.roll.default")
def roll(a, shifts, dims=()):
    shifts, dims = ([each] if isinstance(each, int) else each for each in (shifts, dims))
    return jnp.roll(a, shifts, dims) if dims else jnp.roll(a, shifts[0])


@register("aten.repeat_interleave.self_Tensor")
def repeat_interleave(a, repeats, dim=None, output_size=None):
    repeats = repeats if repeats.ndim else repeats[None]
    return jnp.repeat(a, repeats, dim, total_repeat_length=output_size)


@register("aten.repeat_interleave.Tensor")
def repeat_numbers(repeats, output_size=None):
    return jnp.repeat(jnp.arange(repeats.size), repeats, total_repeat_length=output_size)


@register("aten.diag_embed.default")
def diag_embed(a, offset=0, dim1=-2, dim2=-1):
    n = a.shape[-1] + abs(offset)
    rows = np.arange(a.shape[-1]) + max(-offset, 0)
    out = jnp.zeros((*a.shape[:-1], n, n), a.dtype).at[..., rows, rows + offset].set(a)
    return jnp.moveaxis(out, (-2, -1), (dim1, dim2))


@register("aten.tril_indices.default")
def tril_indices(row, col, offset=0, dtype=None):
    return np.stack(np.tril_indices(row, offset, col))


@register("aten.triu_indices.default")
def triu_indices(row, col, offset=0, dtype=None):
    return np.stack(np.triu_indices(row, offset, col))


# Writes to a view return the whole tensor


@register("aten.select_scatter.default")
def select_scatter(a, src, dim, index):
    return lax.dynamic_update_index_in_dim(a, src.astype(a.dtype), index % a.shape[dim], dim)


@register("aten.slice_scatter.default")
def slice_scatter(a, src, dim=0, start=None, end=None, step=1):
    where = (slice(None),) * (dim % a.ndim) + (slice(start, end, step),)
    return a.at[where].set(src.astype(a.dtype))


@register("aten.diagonal_scatter.default")
def diagonal_scatter(a, src, offset=0, dim1=0, dim2=1):
    return _write(a, np.diagonal(np.arange(a.size).reshape(a.shape), offset, dim1, dim2), src)


# Strides are not part of a graph: the storage of a tensor is taken as contiguous, and not shared.


@register("aten.as_strided.default")
def as_strided(a, size, stride, storage_offset=None):
    return a.reshape(-1)[_strided(a, size, stride, storage_offset)]


@register("aten.as_strided_scatter.default")
def as_strided_scatter(a, src, size, stride, storage_offset=None):
    return _write(a, _strided(a, size, stride, storage_offset), src)


def _strided(a, size, stride, offset):
    """Return the places of the entries in the flat tensor."""
    places = np.tensordot(np.asarray(stride, int), np.indices(size), 1) + (offset or 0)
    return np.arange(a.size)[places]  # raises an error beyond the end


def _write(a, places, src):
    return a.reshape(-1).at[places].set(src.astype(a.dtype), unique_indices=True).reshape(a.shape)
