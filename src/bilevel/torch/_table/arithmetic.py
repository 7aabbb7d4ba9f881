"""Arithmetic, comparisons, bits and choices of single entries."""

import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from bilevel.torch._table.registry import as_float, promoted, register, wide

PAIR, ONE_NAME = ("Tensor", "Scalar"), ("default",)
BITS, SHIFTS = ("Tensor", "Scalar", "Scalar_Tensor"), ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
SPECIAL, XLOGY = ("default", "other_scalar", "self_scalar"), ("Tensor", "Scalar_Other", "Scalar_Self")


def register_pairs(overloads, functions, convert=lambda a: a):
    """Register functions of two arrays, which `convert` prepares."""
    for name, function in functions.items():

        def entry(a, b, function=function):
            return function(*[convert(each) for each in promoted(a, b)])

        register(*[f"aten.{name}.{overload}" for overload in overloads])(entry)


def as_wide(a):
    return wide(as_float(a))


def magnitude(a):
    """Return |a| with torch's derivative at 0, which is 0. JAX has 1."""
    return jnp.abs(a) if jnp.iscomplexobj(a) else a * lax.stop_gradient(jnp.sign(a))


@register("aten.add.Tensor", "aten.add.Scalar")
def add(a, b, alpha=1):
    a, b = promoted(a, b)
    return a + b if alpha == 1 else wide(a) + wide(b) * jnp.asarray(alpha, wide(b).dtype)


@register("aten.sub.Tensor", "aten.sub.Scalar")
def sub(a, b, alpha=1):
    a, b = promoted(a, b)
    return a - b if alpha == 1 else wide(a) - wide(b) * jnp.asarray(alpha, wide(b).dtype)


@register("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(a, b, alpha=1):
    return sub(b, a, alpha)


register_pairs(PAIR, {"mul": lambda a, b: a * b, "fmod": jnp.fmod})
register_pairs(BITS, {"remainder": jnp.remainder})


@register("aten.div.Tensor", "aten.div.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div(a, b, rounding_mode=None):
    a, b = promoted(a, b)
    if rounding_mode is None:
        return as_float(a) / as_float(b)
    if jnp.issubdtype(a.dtype, jnp.integer):
        return lax.div(*jnp.broadcast_arrays(a, b)) if rounding_mode == "trunc" else a // b
    a, b = lax.stop_gradient((wide(a), wide(b)))
    return jnp.trunc(a / b) if rounding_mode == "trunc" else jnp.where(b == 0, a / b, a // b)


@register("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(a, b):
    return div(a, b, "floor")


@register("aten.pow.Tensor_Scalar", "aten.pow.Scalar", "aten.pow.Tensor_Tensor")
def power(a, b):
    if isinstance(b, int | float) and float(b).is_integer() and 0 <= b <= 8:
        return promoted(a, b)[0] ** int(b)
    a, b = promoted(a, b)
    return jnp.power(jnp.where((a == 0) & (b == 0), 1, a), b)  # 0 ** 0 is 1, without derivatives


def atan2(a, b):
    zero = (a == 0) & (b == 0)  # torch's derivatives are 0 there
    return jnp.where(zero, lax.stop_gradient(jnp.arctan2(a, b)), jnp.arctan2(jnp.where(zero, 1, a), b))


def hypot(a, b):
    scale = lax.stop_gradient(jnp.maximum(jnp.abs(a), jnp.abs(b)))
    scale = jnp.where((scale == 0) | jnp.isinf(scale), 1, scale)
    return scale * jnp.sqrt((a / scale) ** 2 + (b / scale) ** 2)


def copysign(a, b):
    return jnp.where(a == 0, lax.stop_gradient(jnp.copysign(a, b)), jnp.copysign(a, b))


def times_log(logarithm, lowest):
    """Return the function a log(b), which is 0 for a = 0, also where b has no logarithm."""

    def function(a, b):
        return a * logarithm(jnp.where((a == 0) & (b <= lowest), 1, b))

    return function


register_pairs(ONE_NAME, {
    "maximum": jnp.maximum, "minimum": jnp.minimum, "gcd": jnp.gcd, "lcm": jnp.lcm,
    "fmax": lambda a, b: jnp.where((a >= b) | jnp.isnan(b), a, b),
    "fmin": lambda a, b: jnp.where((a <= b) | jnp.isnan(b), a, b),
    "logical_and": jnp.logical_and, "logical_or": jnp.logical_or, "logical_xor": jnp.logical_xor,
})  # fmt: skip
register_pairs(ONE_NAME, {
    "atan2": atan2, "hypot": hypot, "logaddexp": jnp.logaddexp, "logaddexp2": jnp.logaddexp2,
    "igamma": special.gammainc, "igammac": special.gammaincc, "special_zeta": special.zeta,
}, as_wide)  # fmt: skip
register_pairs(PAIR, {"copysign": copysign}, as_wide)
register_pairs(XLOGY, {"xlogy": times_log(jnp.log, 0)}, as_wide)
register_pairs(SPECIAL, {"special_xlog1py": times_log(jnp.log1p, -1)}, as_wide)
register_pairs(PAIR, {
    "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater,
    "ge": jnp.greater_equal,
})  # fmt: skip
register_pairs(BITS, {
    "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or, "bitwise_xor": jnp.bitwise_xor,
})  # fmt: skip
register_pairs(SHIFTS, {"bitwise_left_shift": jnp.left_shift, "bitwise_right_shift": jnp.right_shift})
register_pairs(PAIR, {"__lshift__": jnp.left_shift, "__rshift__": jnp.right_shift})


@register("aten.ldexp.Tensor")
def ldexp(a, b):
    return wide(a) * jnp.exp2(as_wide(b))


@register("aten.where.self")
def where(condition, a, b):
    return jnp.where(condition, *promoted(a, b))


@register("aten.clamp.default", "aten.clamp.Tensor")
def clamp(a, low=None, high=None):
    a, *bounds = promoted(a, *[each for each in (low, high) if each is not None])
    if low is not None and high is not None:  # torch: equal bounds have no derivative
        bounds[0] = jnp.where(bounds[0] < bounds[1], bounds[0], lax.stop_gradient(bounds[0]))
    if low is not None:
        a = jnp.where((a < bounds[0]) | jnp.isnan(bounds[0]), bounds[0], a)
    return a if high is None else jnp.where((a > bounds[-1]) | jnp.isnan(bounds[-1]), bounds[-1], a)


@register("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(a, low):
    return clamp(a, low)


@register("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(a, high):
    return clamp(a, None, high)


@register("aten.addcmul.default")
def addcmul(a, b, c, value=1):
    a, b, c = [wide(each) for each in promoted(a, b, c)]
    return a + jnp.asarray(value, a.dtype) * b * c


@register("aten.addcdiv.default")
def addcdiv(a, b, c, value=1):
    a, b, c = [as_wide(each) for each in promoted(a, b, c)]
    return a + jnp.asarray(value, a.dtype) * b / c


@register("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(a, b, weight):
    a, b, weight = [wide(each) for each in promoted(a, b, weight)]
    return jnp.where(jnp.abs(weight) < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight))
