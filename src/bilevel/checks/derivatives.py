"""Explanations of derivatives that JAX cannot take: the derivative, the reason and the remedy.

JAX raises in the middle of a step, or when the step is compiled. Each derivative is then tried separately, so
the result does not depend on the text of JAX's errors.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax

from bilevel.oracles import operations
from bilevel.problem import Objective, Problem

FIRST = "a method of first derivatives, such as bl.solvers.bome, bl.f2sa or bl.solvers.sama"
P = ParamSpec("P")
R = TypeVar("R")
CALLBACKS = {"pure_callback", "io_callback"}


class NoDerivative(ValueError):
    """Error: an objective lacks a derivative that is needed."""


def explain(error: Exception, problem: Problem, x: Any, y: Any, batch: Any, first_order: bool) -> Exception:
    """Return the error; if a derivative is missing at these arguments, one with that derivative and the remedy.

    Args:
        error: the exception.
        problem: the two objectives.
        x: the outer variables; only the shapes of all arguments are used.
        y: the inner variables.
        batch: the batch of the objectives.
        first_order: whether the method takes no second derivatives.
    """
    if isinstance(error, NoDerivative):
        return error
    sentence = _missing(problem, (x, y, batch), first_order)
    if not sentence:
        return error
    found = NoDerivative(sentence)
    found.__cause__ = error
    return found


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Make errors of a function of (problem, x, y, data) name the derivative that an objective lacks."""

    @wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> R:
        try:
            return function(*given, **named)
        except Exception as error:
            try:
                problem, x, y, *data = inspect.signature(function).bind(*given, **named).args[:4]
            except (TypeError, ValueError):  # too few arguments
                raise error from None
            fits = isinstance(problem, Problem)
            found = explain(error, problem, x, y, data[0] if data else None, False) if fits else error
            if found is error:
                raise
            raise found from error

    return call


def no_first(objective: Objective, at: tuple[Any, ...], error: Exception) -> NoDerivative:
    """Return an error for an objective without a first derivative."""
    used = _operations(objective, at)
    which = f"the {objective.level} objective"
    if used & CALLBACKS:
        method = f" and take {FIRST}" if objective.level == "inner" else ""
        return NoDerivative(
            f"{which} calls Python code by jax.pure_callback, as torch code needs, and JAX has no derivative of it: "
            f"write it in jax.numpy, or give the callback its gradient by jax.custom_vjp{method}"
        )
    if "while" in used:
        return NoDerivative(
            f"{which} has a lax.while_loop, or a fori_loop whose bounds are traced, and JAX has no reverse-mode "
            "derivative of it: use lax.scan, or a fori_loop whose bounds are Python numbers"
        )
    return NoDerivative(
        f"JAX cannot take the first derivative of {which} ({_words(error)}): write the operation in jax.numpy, or give "
        "it a jax.custom_jvp"
    )


def no_second(objective: Objective, at: tuple[Any, ...], error: Exception) -> NoDerivative:
    """Return an error for an objective that has a first derivative, but no second one."""
    which = f"this method takes second derivatives of the {objective.level} objective"
    if _operations(objective, at) & CALLBACKS:
        return NoDerivative(
            f"{which}, which calls Python code by jax.pure_callback, as torch code needs: such code has a first "
            f"derivative at most. Write it in jax.numpy, or take {FIRST}"
        )
    return NoDerivative(
        f"{which}, and an operation in it has only a first one ({_words(error)}): write that operation in jax.numpy, "
        f"give it a jax.custom_jvp instead of a jax.custom_vjp, or take {FIRST}"
    )


def _missing(problem: Problem, at: tuple[Any, ...], first_order: bool) -> str:
    """Return a sentence about the first missing derivative, or ""."""
    oracles, objectives = problem.oracles, (problem.g, problem.f)
    if any(_raised(objective, at) for objective in objectives):
        return ""  # the value cannot be computed either, for another reason
    gradients = oracles.inner_gradients, oracles.outer_gradients
    for objective, gradient in zip(objectives, gradients, strict=True):
        if (error := _raised(gradient, at)) is not None:
            return str(no_first(objective, at, error))
    along = lambda x, y, batch: oracles.along(x, y, y, batch)
    if not first_order and (error := _raised(along, at) or _raised(_tangents(problem.g), at)) is not None:
        return str(no_second(problem.g, at, error))
    return ""


def _tangents(objective: Objective) -> Callable[..., Any]:
    """Return the function with all values and tangents, forward over reverse, as in a compiled step."""

    def tangents(x: Any, y: Any, batch: Any) -> Any:
        both = lambda x, y: jax.value_and_grad(objective, argnums=(0, 1))(x, y, batch)
        return jax.jvp(both, (x, y), (x, y))

    return tangents


def _raised(function: Callable[..., Any], at: tuple[Any, ...]) -> Exception | None:
    """Return the exception of tracing and lowering the function for such shapes, or None."""
    try:
        jax.jit(lambda *at: function(*at)).lower(*_shapes(at))
    except Exception as error:
        return error
    return None


def _shapes(tree: Any) -> Any:
    kinds = jax.tree.map(jax.typeof, tree)
    return jax.tree.map(lambda kind: jax.ShapeDtypeStruct(kind.shape, kind.dtype), kinds)


def _operations(objective: Objective, at: tuple[Any, ...]) -> set[str]:
    try:
        return operations(jax.make_jaxpr(lambda *at: objective(*at))(*_shapes(at)))
    except Exception:  # the function uses concrete values
        return set()


def _words(error: Exception) -> str:
    """Return the first line of the error."""
    first = (str(error).splitlines() or [""])[0].strip().rstrip(".")
    return f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__
