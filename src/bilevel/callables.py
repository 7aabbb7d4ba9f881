"""Checks of the functions that a user passes."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from bilevel.words import shown

BY_KEYWORD = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def check_callable(
    value: Any, name: str, arguments: int, what: str, example: str, keywords: tuple[str, ...] = ()
) -> Any:
    """Return the function; raise if it cannot be called with so many arguments and those keywords."""
    if not callable(value) or not takes(value, arguments, *keywords):
        raise TypeError(f"{name} must be {what}, not {_described(value)}: pass e.g. {example}")
    return value


def check_map(project: Any) -> Any:
    """Return the projection, a function from a tree to a tree like it; raise for anything else."""
    example = "optax.projections.projection_non_negative"
    return check_callable(project, "project", 1, "a function from x's tree to itself", example)


def asks_for(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has an unbound parameter of that name, which can be passed by keyword."""
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):
        return False
    bound = isinstance(function, partial) and name in function.keywords
    return parameter is not None and not bound and parameter.kind in BY_KEYWORD


def takes(function: Callable[..., Any], arguments: int, *keywords: str) -> bool:
    """Return whether it takes so many positional arguments and those keywords; True if it has no signature."""
    if inspect.iscoroutinefunction(function):
        return False  # it returns no array
    try:
        inspect.signature(function).bind(*range(arguments), **dict.fromkeys(keywords))
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _described(value: Any) -> str:
    if not callable(value) or isinstance(value, type):
        return shown(value)
    name = getattr(value, "__qualname__", type(value).__name__)
    if inspect.iscoroutinefunction(value):
        return f"the coroutine {name}"
    try:
        return f"{name}{inspect.signature(value)}"
    except (TypeError, ValueError):
        return shown(value)
