"""Roughly how many floating-point operations a traced function takes: enough to plan with, on any backend."""

import math
from collections.abc import Iterator
from typing import Any


def operations(jaxpr: Any) -> float:
    """Matrix products and convolutions by their size, a loop's body times its known length (else once), and an
    operation per entry of every other result."""
    return float(sum(_count(equation) for equation in jaxpr.eqns))


def _count(equation: Any) -> float | int:
    size = sum(
        math.prod(variable.aval.shape) for variable in equation.outvars if hasattr(variable.aval, "shape")
    )
    match equation.primitive.name:
        case "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            return 2 * size * math.prod(shape[axis] for axis in contracted)
        case "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            features = equation.params["dimension_numbers"].rhs_spec[0]
            return 2 * size * math.prod(kernel) / max(kernel[features], 1)
        case "scan":
            return equation.params["length"] * operations(equation.params["jaxpr"].jaxpr)
        case "cond":  # only one branch is taken
            return max(operations(branch.jaxpr) for branch in equation.params["branches"])
    inner = [operations(jaxpr) for jaxpr in _jaxprs(equation.params)]
    return sum(inner) if inner else size


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(item, "eqns"):
                yield item
            elif hasattr(item, "jaxpr") and hasattr(item.jaxpr, "eqns"):
                yield item.jaxpr
