"""Indexing, scattering, sorting and embedding.

torch raises an error at run time for an index out of range. JAX cannot: it clamps reads and drops writes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bilevel.torch._table.registry import canonical, register

IN_BOUNDS = "promise_in_bounds"


def register_write(*names):
    """Register a function of (tensor, dim, index, ...) that returns such a tensor. 0-d tensors arrive as vectors."""

    def add(function):
        def write(a, dim, *others, **named):
            vector, *others = (
                jnp.atleast_1d(each) if hasattr(each, "ndim") else each for each in (a, *others)
            )
            return function(vector, dim % vector.ndim, *others, **named).reshape(a.shape)

        return register(*names)(write)

    return add


def put(a, places, values, accumulate=False):
    """Write values at places. If places are equal one value remains; as in torch, all have its derivative."""
    values = jnp.asarray(values, a.dtype)
    return a.at[places].add(values) if accumulate else a.at[places].set(values, unique_indices=True)


def pick(a, index, dim):
    return jnp.take_along_axis(a, index, dim, mode=IN_BOUNDS)


def lines(dim, index):
    """Return the places of an index along a dimension of a tensor."""
    return (slice(None),) * dim + (index,)


def entries(dim, index):
    """Return the places of an index of single entries along a dimension, as `gather` and `scatter` have it."""
    grid = np.ix_(*map(range, index.shape))
    return (*grid[:dim], index, *grid[dim + 1 :])


# Indexing by tensors: torch and JAX have the same rules, also for negative and separated indices.


@register("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(a, indices):
    return a.at[tuple(slice(None) if each is None else each for each in indices)].get(mode=IN_BOUNDS)


@register("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(a, indices, values, accumulate=False):
    if any(each is not None and each.dtype == bool for each in indices):
        return put_where(a, indices, values, accumulate)
    return put(a, tuple(slice(None) if each is None else each for each in indices), values, accumulate)


def put_where(a, indices, values, accumulate):
    """Write where a mask is true. How many values that needs depends on the data, so they must be the same."""
    before = next(i for i, each in enumerate(indices) if each is not None)
    mask, after = indices[before], a.ndim - before - indices[before].ndim
    values = values.reshape((1,) * (before + 1 + after - values.ndim) + values.shape)
    if values.shape[before] != 1 or any(each is not None for each in indices[before + 1 :]):
        raise NotImplementedError(
            "a mask can write only one value to all its places: use torch.where instead"
        )
    values = values.reshape(values.shape[:before] + (1,) * mask.ndim + values.shape[before + 1 :])
    return masked_fill(a, mask.reshape(mask.shape + (1,) * after), a + values if accumulate else values)


@register("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(a, mask, value):
    return jnp.where(mask, jnp.asarray(value, a.dtype), a)


@register("aten.masked_scatter.default")
def masked_scatter(a, mask, source):
    a, mask = jnp.broadcast_arrays(a, mask)
    order = jnp.cumsum(mask.reshape(-1)).reshape(a.shape) - 1
    return jnp.where(mask, jnp.take(source.reshape(-1), order, mode="clip"), a) if source.size else a


@register("aten.take.default")
def take(a, index):
    return a.reshape(-1).at[index].get(mode=IN_BOUNDS)


@register("aten.put.default")
def put_flat(a, index, source, accumulate=False):
    return put(a.reshape(-1), index.reshape(-1), source.reshape(-1), accumulate).reshape(a.shape)


# Whole lines along a dimension


@register("aten.index_select.default")
def index_select(a, dim, index):
    if a.ndim == 0:
        return a
    return a.at[lines(dim % a.ndim, index.reshape(-1))].get(mode=IN_BOUNDS)


@register_write("aten.index_add.default")
def index_add(a, dim, index, source, alpha=1):
    return put(a, lines(dim, index), source * alpha, accumulate=True)


@register_write("aten.index_copy.default")
def index_copy(a, dim, index, source):
    return put(a, lines(dim, index), source)


@register_write("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(a, dim, index, value):
    return masked_fill(a, jnp.zeros(a.shape, bool).at[lines(dim, index)].set(True), value)


@register_write("aten.index_reduce.default")
def index_reduce(a, dim, index, source, reduce, include_self=True):
    return reduce_into(a, lines(dim, index), source, REDUCTIONS.get(reduce, reduce), include_self)


# Single entries along a dimension


@register("aten.gather.default")
def gather(a, dim, index, sparse_grad=False):
    shape, a, index = index.shape, jnp.atleast_1d(a), jnp.atleast_1d(index)
    parts = [slice(None) if i == dim % a.ndim else slice(n) for i, n in enumerate(index.shape)]
    return pick(a[tuple(parts)], index, dim).reshape(shape)


@register("aten.take_along_dim.default")
def take_along_dim(a, index, dim=None):
    return jnp.take_along_axis(a, index, dim)


@register_write("aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter(a, dim, index, src, reduce=None):
    src = jnp.broadcast_to(src, index.shape) if isinstance(src, bool | int | float) else src
    src = src[tuple(map(slice, index.shape))]
    if reduce is None:
        return put(a, entries(dim, index), src)
    return reduce_into(a, entries(dim, index), src, REDUCTIONS[reduce], True)


@register_write("aten.scatter_add.default")
def scatter_add(a, dim, index, src):
    return put(a, entries(dim, index), src[tuple(map(slice, index.shape))], accumulate=True)


@register_write("aten.scatter_reduce.two")
def scatter_reduce(a, dim, index, src, reduce, include_self=True):
    return reduce_into(a, entries(dim, index), src[tuple(map(slice, index.shape))], reduce, include_self)


REDUCTIONS = {"add": "sum", "multiply": "prod"}  # other names of the same


def reduce_into(a, places, src, reduce, include_self):
    """Reduce values into the places of a tensor, with or without its entries."""
    src = jnp.asarray(src, a.dtype)
    kept = jnp.ones(a.shape, bool) if include_self else jnp.ones(a.shape, bool).at[places].set(False)
    add = lambda base, values: base.at[places].add(values)
    if reduce in ("sum", "mean"):
        total = add(jnp.where(kept, a, 0), src)
        count = add(kept.astype(int), 1)
        divide = jnp.divide if jnp.issubdtype(a.dtype, jnp.inexact) else jnp.floor_divide
        return total if reduce == "sum" else divide(total, jnp.maximum(count, 1).astype(a.dtype))
    least, most = limits(a.dtype)
    unit = {"prod": 1, "amax": least, "amin": most}[reduce]
    before, a = a, jnp.where(kept, a, jnp.asarray(unit, a.dtype))
    at = lax.stop_gradient(a).at[places]
    out = {"prod": at.multiply, "amax": at.max, "amin": at.min}[reduce](lax.stop_gradient(src))
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return out
    if reduce == "prod":
        zeros = add((a == 0).astype(int), (src == 0).astype(int))
        logs = add(*(jnp.log(jnp.where(each == 0, 1, jnp.abs(each))) for each in (a, src)))
        signs = [lax.stop_gradient(jnp.where(each < 0, -1, 1).astype(each.dtype)) for each in (a, src)]
        rest = jnp.exp(logs) * signs[0].at[places].multiply(signs[1])
        zero = add(*(jnp.where(each == 0, each, 0) for each in (a, src)))
        smooth = rest * jnp.where(zeros == 0, 1, jnp.where(zeros == 1, zero, 0))
    else:  # equal extremes share the derivative
        mine, theirs = before == out, src == out[places]  # torch counts the tensor itself in any case
        smooth = add(jnp.where(mine & kept, a, 0), jnp.where(theirs, src, 0))
        smooth = smooth / jnp.maximum(add(mine.astype(a.dtype), theirs.astype(a.dtype)), 1)
    smooth = jnp.where(jnp.isfinite(smooth), smooth, 0)
    return out + (smooth - lax.stop_gradient(smooth))


def limits(dtype):
    if jnp.issubdtype(dtype, jnp.inexact):
        return -jnp.inf, jnp.inf
    return (
        (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max) if jnp.issubdtype(dtype, jnp.integer) else (False, True)
    )


# Embedding


@register("aten.embedding.default")
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    out = weight.at[indices].get(mode=IN_BOUNDS, wrap_negative_indices=False)
    fixed = lax.stop_gradient(out)
    if scale_grad_by_freq:
        counts = jnp.zeros(len(weight), out.dtype).at[indices].add(1)[indices]
        out = fixed + (out - fixed) / counts[..., None]
    # torch leaves the row of the padding out of the derivative
    return out if padding_idx < 0 else jnp.where((indices == padding_idx)[..., None], fixed, out)


@register("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    starts = offsets[: offsets.size - include_last_offset]
    numbers = jnp.arange(indices.size)
    bag = jnp.searchsorted(starts, numbers, side="right") - 1
    used = (indices != padding_idx)[:, None]
    rows = embedding(weight, indices, padding_idx, scale_grad_by_freq)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    empty = jnp.zeros((starts.size, weight.shape[1]), weight.dtype)
    if mode < 2:  # sum, mean
        total = empty.at[bag].add(jnp.where(used, rows, 0))
        counts = jnp.zeros((starts.size, 1), weight.dtype).at[bag].add(used)
        out = total / jnp.maximum(counts, 1) if mode == 1 else total
    else:  # the first largest entry
        used = used & (
            rows == (empty - jnp.inf).at[bag].max(lax.stop_gradient(jnp.where(used, rows, -jnp.inf)))[bag]
        )
        first = (
            jnp.full(empty.shape, indices.size).at[bag].min(jnp.where(used, numbers[:, None], indices.size))
        )
        chosen = jnp.take_along_axis(rows, jnp.minimum(first, indices.size - 1), 0)
        out = jnp.where(first < indices.size, chosen, 0)
    return out, None, None, None


# Sorting


@register("aten.sort.default", "aten.sort.stable")
def sort(a, dim=-1, descending=False, stable=True):
    if a.ndim == 0:
        return a, jnp.zeros((), int)
    order = jnp.argsort(lax.stop_gradient(a), dim, descending=descending)
    return pick(a, order, dim), order


@register("aten.topk.default")
def topk(a, k, dim=-1, largest=True, sorted=True):
    if a.ndim == 0:
        return a, jnp.zeros((), int)
    keys = jnp.moveaxis(lax.stop_gradient(a), dim, -1)
    if not largest:
        keys = -keys if jnp.issubdtype(a.dtype, jnp.inexact) else ~keys
    order = jnp.moveaxis(lax.top_k(keys, k)[1], -1, dim)
    return pick(a, order, dim), order


@register("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(sequence, values, out_int32=False, right=False, side=None, sorter=None):
    sequence = sequence if sorter is None else jnp.take_along_axis(sequence, sorter, -1)
    find = lambda *pair: jnp.searchsorted(*pair, side=side or ("right" if right else "left"))
    if sequence.ndim == 1:
        return find(sequence, jnp.asarray(values))
    return jnp.vectorize(find, signature="(n),(m)->(m)")(sequence, values)


@register("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(values, boundaries, out_int32=False, right=False):
    return searchsorted(boundaries, values, right=right)


@register("aten.one_hot.default")
def one_hot(index, num_classes):
    return jax.nn.one_hot(index, num_classes, dtype=canonical("int64"))
