"""Smaller arrays to try a rule on, if the rule treats all entries of an array alike.

The update is traced on the true shapes and on smaller ones, but not run. A few entries show everything if the
program consists of operations entry by entry, sums over whole arrays and numbers. Both programs must differ
only in shapes. Other rules give another program and are tried on the true shapes: factors by rows
(Adafactor), matrix products (Muon), masks by position, decisions by size.
"""

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from bilevel.solvers.fixed_points.trial import Shapes, Trial

EDGE = 3  # the length of each side of a smaller array, at most
# fmt: off
ENTRYWISE = frozenset(["abs", "add", "add_any", "and", "atan2", "cbrt", "ceil", "clamp", "convert_element_type",
    "copy", "cos", "cosh", "div", "eq", "erf", "erf_inv", "exp", "exp2", "expm1", "floor", "ge", "gt",
    "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "nextafter", "not", "or", "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor"])
WHOLE = frozenset(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"])
CALLS = frozenset(["jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "cond",
    "while", "remat", "checkpoint"])
# fmt: on
LENGTHS = re.compile(r"(?<=\w\[)[\d,]+(?=\])|(?<=shape=\()[\d, ]+|(?<=0x)[0-9a-f]+|\s")  # and addresses


def smaller_shapes(rule: Any, structure: Any, shapes: Shapes) -> Shapes:
    """Return smaller shapes to try the rule on, or `shapes` if the rule depends on them."""
    smaller = tuple((tuple(min(n, EDGE) for n in shape), dtype) for shape, dtype in shapes)
    if smaller == shapes:
        return shapes
    true = _traced(rule, structure, shapes)
    if any(jnp.ndim(each) for each in true.consts) or not all(map(_is_alike, true.jaxpr.eqns)):
        return shapes
    try:
        other = _traced(rule, structure, smaller)
    except Exception:  # a user's rule that needs the exact shapes
        return shapes
    return smaller if _without_lengths(true) == _without_lengths(other) else shapes


def _traced(rule: Any, structure: Any, shapes: Shapes) -> Any:
    trial = Trial(rule, structure, shapes)

    def once(y, gradient):
        y, gradient = structure.unflatten(y), structure.unflatten(gradient)
        return trial.step(gradient, rule.init(y), y)

    arrays = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    with jax.numpy_dtype_promotion("standard"):
        return jax.make_jaxpr(once)(arrays, arrays)


def _without_lengths(program: Any) -> str:
    """Return the text of a program without the lengths of its arrays; their ranks remain."""
    return LENGTHS.sub(lambda found: "," * found.group().count(","), str(program))


def _is_alike(equation: Any) -> bool:
    """Return whether an equation treats all entries of an array alike."""
    name, inner = equation.primitive.name, list(_programs(equation))
    if inner:
        alike = all(all(map(_is_alike, each.jaxpr.eqns)) for each in inner)
        return name in CALLS and alike and not any(jnp.ndim(c) for each in inner for c in each.consts)
    ranks = {v.aval.ndim for v in (*equation.invars, *equation.outvars)}
    if ranks <= {0} or name in ENTRYWISE:
        return True
    if name in WHOLE:
        return len(equation.params["axes"]) == equation.invars[0].aval.ndim
    return name == "broadcast_in_dim" and equation.invars[0].aval.ndim == 0


def _programs(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else [value]:
            if isinstance(each, core.ClosedJaxpr):
                yield each
            elif isinstance(each, core.Jaxpr):
                yield core.ClosedJaxpr(each, [])
