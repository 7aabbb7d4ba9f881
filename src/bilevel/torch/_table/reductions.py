"""Reductions, cumulative operations, softmax and norms."""

import jax
import jax.numpy as jnp
from jax import lax

from bilevel.torch._table.arithmetic import as_wide, magnitude
from bilevel.torch._table.registry import axes_of, canonical, promoted, register, wide


def converted(a, dtype):
    """Return the array in the type of a sum: integers and booleans as int64 without `dtype`."""
    if dtype is None and not jnp.issubdtype(a.dtype, jnp.inexact):
        dtype = canonical("int64")
    return a if dtype is None else a.astype(dtype)


def along(function):
    """Let a function of an array and an axis take 0-d arrays and negative axes."""

    def entry(a, dim=-1, *rest, **named):
        if a.ndim:
            return function(a, dim % a.ndim, *rest, **named)
        return jax.tree.map(lambda out: out.reshape(()), function(a[None], 0, *rest, **named))

    return entry


@register("aten.sum.dim_IntList")
def sum_(a, dim=None, keepdim=False, dtype=None):
    return jnp.sum(converted(a, dtype), axes_of(dim, a.ndim), keepdims=keepdim)


@register("aten.nansum.default")
def nansum(a, dim=None, keepdim=False, dtype=None):
    return sum_(jnp.where(jnp.isnan(a), 0, a), dim, keepdim, dtype)


@register("aten.mean.dim")
def mean(a, dim=None, keepdim=False, dtype=None):
    return jnp.mean(a if dtype is None else a.astype(dtype), axes_of(dim, a.ndim), keepdims=keepdim)


@register("aten.prod.dim_int")
def prod(a, dim=None, keepdim=False, dtype=None):
    return jnp.prod(converted(a, dtype), axes_of(dim, a.ndim), keepdims=keepdim)


for name, function in {"sum": sum_, "mean": mean, "prod": prod}.items():
    register(f"aten.{name}.default")(lambda a, dtype=None, function=function: function(a, dtype=dtype))

for name, function in {"amax": jnp.max, "amin": jnp.min, "any": jnp.any, "all": jnp.all}.items():

    def reduced(a, dim=None, keepdim=False, function=function):
        return function(a, axes_of(dim, a.ndim), keepdims=keepdim)

    overloads = ("default",) if name.startswith("am") else ("default", "dim", "dims")
    register(*[f"aten.{name}.{overload}" for overload in overloads])(reduced)

register("aten.max.default")(jnp.max)
register("aten.min.default")(jnp.min)


@register("aten.aminmax.default")
def aminmax(a, dim=None, keepdim=False):
    axes = axes_of(dim, a.ndim)
    return jnp.min(a, axes, keepdims=keepdim), jnp.max(a, axes, keepdims=keepdim)


@register("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(a, dim=None):
    return jnp.sum(a != 0, axes_of(dim, a.ndim))


def taken(a, index, axis, keepdim):
    """Return the entries at `index`, an array with length 1 along the axis, and the index."""
    out = jnp.take_along_axis(a, index, axis), index
    return out if keepdim else tuple(jnp.squeeze(each, axis) for each in out)


for name, function in {"max": jnp.argmax, "min": jnp.argmin}.items():

    def extreme(a, dim, keepdim=False, function=function):
        return taken(a, function(a, dim, keepdims=True), dim, keepdim)

    def place(a, dim=None, keepdim=False, function=function):
        return function(a, dim, keepdims=keepdim) if a.ndim else jnp.zeros((), int)

    register(f"aten.{name}.dim")(along(extreme))
    register(f"aten.arg{name}.default")(place)


@register("aten.kthvalue.default")
def kthvalue(a, k, dim=-1, keepdim=False):
    place = lambda a, dim: lax.slice_in_dim(jnp.argsort(a, dim), k - 1, k, axis=dim)
    return along(lambda a, dim: taken(a, place(a, dim), dim, keepdim))(a, dim)


def median_index(a, axis, skips_nan):
    count, valid = a.shape[axis], jnp.sum(~jnp.isnan(a), axis, keepdims=True)
    order = jnp.argsort(a, axis)  # NaN is last
    rank = jnp.maximum(valid - 1, 0) // 2 if skips_nan else jnp.where(valid < count, valid, (count - 1) // 2)
    return jnp.take_along_axis(order, rank, axis)


for name, skips_nan in {"median": False, "nanmedian": True}.items():

    def median_along(a, dim, keepdim=False, skips_nan=skips_nan):
        return taken(a, median_index(a, dim, skips_nan), dim, keepdim)

    def median(a, skips_nan=skips_nan):
        a = a.reshape(-1) if a.size else jnp.full(1, jnp.nan, a.dtype)
        found = lax.stop_gradient(a[median_index(a, 0, skips_nan)])
        equal = (a == found) | (jnp.isnan(a) & jnp.isnan(found))  # they share the derivative
        return (found + jnp.sum(jnp.where(equal, a - lax.stop_gradient(a), 0)) / jnp.sum(equal)).reshape(())

    register(f"aten.{name}.dim")(along(median_along))
    register(f"aten.{name}.default")(median)

for name, function in {"cumsum": jnp.cumsum, "cumprod": jnp.cumprod}.items():

    def cumulative(a, dim, dtype=None, function=function):
        return function(converted(a, dtype), dim)

    register(f"aten.{name}.default")(along(cumulative))

register("aten.logcumsumexp.default")(along(lambda a, dim: lax.cumlogsumexp(wide(a), dim)))

for name, beats in {"cummax": jnp.greater_equal, "cummin": jnp.less_equal}.items():

    def running(a, dim, beats=beats):
        def later(one, two):
            wins = beats(two[0], one[0]) | jnp.isnan(two[0])
            return jnp.where(wins, two[0], one[0]), jnp.where(wins, two[1], one[1])

        places = lax.broadcasted_iota(int, a.shape, dim)
        index = lax.associative_scan(later, (lax.stop_gradient(a), places), axis=dim)[1]
        return taken(a, index, dim, True)

    register(f"aten.{name}.default")(along(running))

for name, function in {"_softmax": jax.nn.softmax, "_log_softmax": jax.nn.log_softmax}.items():

    def normalized(a, dim, half_to_float=False, function=function):
        return function(wide(a), dim) if a.size else a

    register(f"aten.{name}.default")(along(normalized))


@register("aten._safe_softmax.default")
@along
def safe_softmax(a, dim, dtype=None):
    a = wide(a if dtype is None else a.astype(dtype))
    empty = jnp.all(a == -jnp.inf, dim, keepdims=True)
    return jnp.where(empty, 0, jax.nn.softmax(jnp.where(empty, 0, a), dim))


@register("aten.logsumexp.default")
def logsumexp(a, dim, keepdim=False):
    return jax.scipy.special.logsumexp(as_wide(a), axes_of(dim, a.ndim), keepdims=keepdim)


def moments(a, dim=None, correction=None, keepdim=False):
    """Return the mean, the variance and the standard deviation."""
    a, axes = wide(a), axes_of(dim, a.ndim)
    center = jnp.mean(a, axes, keepdims=True)
    count = a.size // max(center.size, 1) - (1 if correction is None else correction)
    variance = jnp.sum((a - center) ** 2, axes, keepdims=True) / max(count, 0)
    zero = variance == 0  # torch: the derivative of the standard deviation is 0 there
    out = center, variance, jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, variance)))
    return out if keepdim else tuple(jnp.squeeze(each, axes) for each in out)


for name, picks in {"var": (1,), "std": (2,), "var_mean": (1, 0), "std_mean": (2, 0)}.items():

    def spread(a, *rest, picks=picks, **named):
        return tuple(moments(a, *rest, **named)[i] for i in picks)

    register(f"aten.{name}.correction")(spread)


@register("aten.linalg_vector_norm.default")
def norm(a, order=2, dim=None, keepdim=False, dtype=None):
    a, axes = as_wide(a if dtype is None else a.astype(dtype)), axes_of(dim, a.ndim)
    total = lambda each: jnp.sum(each, axes, keepdims=keepdim)
    if order == 0:
        return total(lax.stop_gradient(a) != 0)
    if abs(order) == float("inf"):
        return (jnp.max if order > 0 else jnp.min)(magnitude(a), axes, keepdims=keepdim)
    if order == 1:
        return total(magnitude(a))
    zero = a == 0  # no derivatives here, and where the norm is 0
    powers = total(a * a if order == 2 else jnp.where(zero, 0, jnp.where(zero, 1, magnitude(a)) ** order))
    return jnp.where(powers == 0, 0, jnp.where(powers == 0, 1, powers) ** (1 / order))


@register("aten.dist.default")
def dist(a, b, order=2):
    a, b = promoted(a, b)
    return norm(a - b, order)


@register("aten._cdist_forward.default")
def cdist(a, b, order, mode=None):
    return norm(a[..., :, None, :] - b[..., None, :, :], order, -1)


@register("aten._pdist_forward.default")
def pdist(a, order=2):
    rows, columns = jnp.triu_indices(len(a), 1)
    return norm(a[rows] - a[columns], order, -1)
