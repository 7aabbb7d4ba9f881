"""Functions that a user brings: whether they can be called as they will be."""

import inspect
from collections.abc import Callable
from typing import Any

from bilevel.words import shown


def check_callable(value: Any, name: str, arguments: int, what: str, example: str) -> Any:
    """A function that can be called with so many arguments."""
    if not callable(value) or not takes(value, arguments):
        raise TypeError(f"{name} must be {what}, not {_described(value)}: pass e.g. {example}")
    return value


def check_map(project: Any) -> Any:
    """A projection: a function from a tree to itself."""
    example = "optax.projections.projection_non_negative"
    return check_callable(project, "project", 1, "a function from x's tree to itself", example)


def takes(function: Callable[..., Any], arguments: int) -> bool:
    """Whether it can be called with so many positional arguments; what has no signature is trusted."""
    if inspect.iscoroutinefunction(function):
        return False  # what it returns is no array
    try:
        inspect.signature(function).bind(*range(arguments))
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
