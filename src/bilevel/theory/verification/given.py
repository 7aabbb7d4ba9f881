"""What a run is judged by: one set of declared constants, and perhaps the inner solution in closed form."""

from dataclasses import fields
from typing import Any

import jax
import numpy as np

from bilevel.checks import check_callable, signature
from bilevel.theory.blocks import Blocks
from bilevel.theory.constants import Constants
from bilevel.theory.estimation.estimated import Estimated
from bilevel.types import PyTree
from bilevel.words import described


def check_constants(constants: Any) -> None:
    if isinstance(constants, Estimated):
        raise TypeError(
            "these constants are estimated, not declared: pass constants.assume() to judge the run as if they held"
        )
    if not isinstance(constants, Constants | Blocks):
        raise TypeError(
            f"constants must be a theory.Constants or theory.Blocks, not {type(constants).__name__}: pass e.g. "
            "theory.Constants(mu, L, M, rho)"
        )
    if any(np.ndim(getattr(constants, name)) for name in names_of(constants)):
        raise ValueError("one run has one set of constants: pass scalars to theory.Constants, not arrays")


def names_of(constants: Constants | Blocks) -> tuple[str, ...]:
    """Its constants; what an assumed one adds to them is not one."""
    return tuple(field.name for field in fields(Blocks if isinstance(constants, Blocks) else Constants))


def check_solution(solution: Any, x: PyTree, y: PyTree) -> None:
    """Left out, or a function from x to something like y."""
    if solution is None:
        return
    check_callable(solution, "solution", 1, "a function from x to y*(x)", "problem.inner_solution")
    try:
        found = jax.eval_shape(solution, x)
    except Exception as error:
        raise TypeError(
            f"solution must return y*(x), an array or a tree like y, at x, but raises: {error}"
        ) from error
    if signature(found) != signature(y):
        raise TypeError(
            f"solution must return something like y, {described(y)}, but returns {described(found)}"
        )
