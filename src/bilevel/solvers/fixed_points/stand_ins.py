"""Smaller arrays to try a rule on: allowed where it treats all entries of an array alike.

The update is traced, not run: on arrays of the true shapes and on the smaller ones. If it is made of operations entry
by entry, of sums over whole arrays and of numbers, and both programs are the same but for the shapes, an array of a few
entries shows all there is to see. Rules with factors by rows (Adafactor), products of matrices (Muon), masks by
position or decisions by size give another program, and are tried on the true shapes.
"""

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


def stand_ins(rule: Any, structure: Any, shapes: Shapes) -> Shapes:
    """Shapes that the rule may be tried on in the place of `shapes`: smaller ones, or the same."""
    smaller = tuple((tuple(min(n, EDGE) for n in shape), dtype) for shape, dtype in shapes)
    if smaller == shapes:
        return shapes
    true = _traced(rule, structure, shapes)
    if any(jnp.ndim(each) for each in true.consts) or not _alike(true.jaxpr):
        return shapes
    try:
        other = _traced(rule, structure, smaller)
    except Exception:  # a rule of the user's that wants those very shapes
        return shapes
    return smaller if _outline(true.jaxpr) == _outline(other.jaxpr) else shapes


def _traced(rule: Any, structure: Any, shapes: Shapes) -> Any:
    trial = Trial(rule, structure, shapes)

    def once(y, gradient):
        y, gradient = structure.unflatten(y), structure.unflatten(gradient)
        return trial._step(gradient, rule.init(y), y)

    arrays = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    with jax.numpy_dtype_promotion("standard"):
        return jax.make_jaxpr(once)(arrays, arrays)


def _alike(program: Any) -> bool:
    """Whether it cannot tell the entries of an array apart."""
    return all(map(_one_alike, program.eqns))


def _one_alike(equation: Any) -> bool:
    name, inner = equation.primitive.name, list(_programs(equation))
    if inner:
        return name in CALLS and all(
            _alike(each.jaxpr) and not any(jnp.ndim(c) for c in each.consts) for each in inner
        )
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


def _outline(program: Any) -> tuple[Any, ...]:
    """Its operations, what they are applied to, and their settings; no shapes."""
    number = {v: i for i, v in enumerate((*program.constvars, *program.invars))}

    def operand(v):
        if isinstance(v, core.Literal):
            return "number", str(v.val)
        return number[v], v.aval.ndim, str(v.aval.dtype)

    lines = []
    for equation in program.eqns:
        settings = [
            (k, str(v))
            for k, v in sorted(equation.params.items())
            if isinstance(v, bool | int | float | str | jnp.dtype) and not isinstance(v, tuple)
        ]
        inner = [_outline(each.jaxpr) for each in _programs(equation)]
        lines.append((equation.primitive.name, [operand(v) for v in equation.invars], settings, inner))
        number |= {v: len(number) + i for i, v in enumerate(equation.outvars)}
    return lines, [operand(v) for v in program.outvars]
