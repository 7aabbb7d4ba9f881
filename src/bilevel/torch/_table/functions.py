"""Functions of single entries, also activations."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from bilevel.torch._table.arithmetic import as_wide, clamp, magnitude
from bilevel.torch._table.registry import register


def register_functions(functions, convert=lambda a: a):
    """Register functions of one array, which `convert` prepares, and of numbers."""
    for name, function in functions.items():

        def entry(a, *numbers, function=function, **named):
            return function(convert(a), *numbers, **named)

        register(f"aten.{name}.default")(entry)


def of_floats(function):
    """Return a function that leaves integers and booleans as they are."""
    return lambda a: function(a) if jnp.issubdtype(a.dtype, jnp.inexact) else a


def sign(a):
    return jnp.sign(a) if jnp.iscomplexobj(a) else jnp.where(jnp.isnan(a), 0, jnp.sign(a))


def angle(a):
    if jnp.iscomplexobj(a):
        return jnp.angle(a)
    return jnp.where(jnp.isnan(a), a, jnp.where(a < 0, jnp.pi, 0))


def nan_to_num(a, nan=None, highest=None, lowest=None):
    return jnp.nan_to_num(a, nan=nan or 0.0, posinf=highest, neginf=lowest)


register_functions({
    "neg": jnp.negative, "abs": magnitude, "sign": sign, "sgn": sign, "square": jnp.square,
    "isnan": jnp.isnan, "isinf": jnp.isinf, "isfinite": jnp.isfinite, "signbit": jnp.signbit,
    "logical_not": jnp.logical_not, "bitwise_not": jnp.bitwise_not, "nan_to_num": nan_to_num,
    "floor": of_floats(jnp.floor), "ceil": of_floats(jnp.ceil), "trunc": of_floats(jnp.trunc),
    "frac": lambda a: a - jnp.trunc(a), "round": of_floats(jnp.round), "relu": jax.nn.relu,
    "real": jnp.real, "imag": jnp.imag, "_conj": jnp.conj, "conj_physical": jnp.conj,
    "view_as_real": lambda a: jnp.stack([a.real, a.imag], -1),
    "view_as_complex": lambda a: lax.complex(a[..., 0], a[..., 1]),
})  # fmt: skip
register_functions({
    "acos": jnp.arccos, "acosh": jnp.arccosh, "asin": jnp.arcsin, "asinh": jnp.arcsinh, "atan": jnp.arctan,
    "atanh": jnp.arctanh, "cos": jnp.cos, "cosh": jnp.cosh, "sin": jnp.sin, "sinh": jnp.sinh, "tan": jnp.tan,
    "tanh": jnp.tanh, "sinc": jnp.sinc, "angle": angle, "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1,
    "log": jnp.log, "log10": jnp.log10, "log1p": jnp.log1p, "log2": jnp.log2, "sqrt": jnp.sqrt, "rsqrt": lax.rsqrt,
    "reciprocal": lambda a: 1 / a, "erf": lax.erf, "erfc": lax.erfc, "erfinv": lax.erf_inv, "lgamma": lax.lgamma,
    "digamma": lax.digamma, "i0": lambda a: jnp.exp(magnitude(a)) * lax.bessel_i0e(a), "special_i0e": lax.bessel_i0e,
    "special_i1": lambda a: jnp.exp(magnitude(a)) * lax.bessel_i1e(a), "special_i1e": lax.bessel_i1e,
    "special_ndtr": special.ndtr, "special_ndtri": special.ndtri, "special_log_ndtr": special.log_ndtr,
    "sigmoid": jax.nn.sigmoid, "silu": jax.nn.silu, "log_sigmoid": jax.nn.log_sigmoid,
}, as_wide)  # fmt: skip


@register("aten.round.decimals")
def round_decimals(a, decimals):
    return jnp.round(as_wide(a), decimals)


@register("aten.polygamma.default")
def polygamma(n, a):
    return lax.digamma(as_wide(a)) if n == 0 else special.polygamma(n, as_wide(a))


@register("aten.complex.default")
def complex_(a, b):
    return lax.complex(a, b)


@register("aten.polar.default")
def polar(length, angle):
    return lax.complex(length * jnp.cos(angle), length * jnp.sin(angle))


def entropy(a):
    return jnp.where(a > 0, -a * jnp.log(jnp.where(a > 0, a, 1)), jnp.where(a < 0, -jnp.inf, a))


def logit(a, eps=None):
    a = a if eps is None else clamp(a, eps, 1 - eps)
    return jnp.log(a / (1 - a))


def elu(a, alpha=1.0, scale=1.0, input_scale=1.0):
    below = jnp.where(a < 0, a, 0) * input_scale  # large entries would overflow
    at_zero = a * input_scale  # torch's second derivative at 0 is 0
    return jnp.where(a > 0, a, alpha * jnp.where(a < 0, jnp.expm1(below), at_zero)) * scale


def softplus(a, beta=1, threshold=20):
    linear = a * beta > threshold
    return jnp.where(linear, a, jnp.log1p(jnp.exp(jnp.where(linear, 0, a * beta))) / beta)


def hardtanh(a, low=-1, high=1):
    return jnp.where(a <= low, low, jnp.where(a >= high, high, a))


def softshrink(a, bound=0.5):
    return jnp.where(a > bound, a - bound, jnp.where(a < -bound, a + bound, a * 0))


register_functions({
    "special_entr": entropy, "logit": logit, "elu": elu, "softplus": softplus, "softshrink": softshrink,
    "celu": lambda a, alpha=1: elu(a, alpha, 1, 1 / alpha),
    "gelu": lambda a, approximate="none": jax.nn.gelu(a, approximate == "tanh"),
    "mish": lambda a: a * jnp.tanh(softplus(a)),
    "leaky_relu": lambda a, slope=0.01: jnp.where(a > 0, a, a * slope),
    "hardsigmoid": lambda a: hardtanh(a, -3, 3) / 6 + 0.5,
    "hardswish": lambda a: jnp.where(a >= 3, a, a * (hardtanh(a, -3, 3) / 6 + 0.5)),
}, as_wide)  # fmt: skip
register_functions({
    "hardtanh": hardtanh,
    "relu6": lambda a: hardtanh(a, 0, 6),
    "hardshrink": lambda a, bound=0.5: jnp.where(jnp.abs(a) <= bound, 0, a),
    "threshold": lambda a, bound, value: jnp.where(a <= bound, value, a),
})  # fmt: skip


@register("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(a):
    a = as_wide(a)
    return jax.nn.log_sigmoid(a), lax.stop_gradient(jnp.exp(-jnp.abs(a)))


@register("aten._prelu_kernel.default")
def prelu(a, weight):
    return jnp.where(a > 0, a, weight * a)


@register("aten.glu.default")
def glu(a, dim=-1):
    a, gate = jnp.split(as_wide(a), 2, dim)
    return a * jax.nn.sigmoid(gate)
