"""Options of solvers: converters of their fields, and a decorator of the functions that make solvers."""

import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial, wraps
from inspect import signature
from typing import Any, TypeVar

from equinox import field as field
from jax.core import Tracer

from bilevel.checks import as_number, check_choice, check_count, check_positive, check_problem
from bilevel.solvers.rules import Rule as Rule, as_rule
from bilevel.words import shown

F = TypeVar("F", bound=Callable[..., Any])
STEP_SIZES = ("inner", "adjoint", "outer")


def factory(**renamed: str) -> Callable[[F], F]:
    """Return a decorator that still accepts step sizes by position and old option names, with a
    DeprecationWarning.

    Both work for one release. `renamed` maps old option names to new ones. Options are checked before
    Equinox, whose errors do not name the option.
    """

    def decorate(make: F) -> F:
        name = f"bl.solvers.{make.__name__}"  # pyright: ignore[reportFunctionMemberAccess]
        levels = [level for level in signature(make).parameters if level in STEP_SIZES]
        made = fields(make.__annotations__["return"])
        checks = {each.name: each.metadata["converter"] for each in made if "converter" in each.metadata}

        @wraps(make)
        def call(*given: Any, **options: Any) -> Any:
            for old in renamed.keys() & options.keys():
                message = f"{name}: the option {old} is now {renamed[old]}"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                options[renamed[old]] = options.pop(old)
            steps = dict(zip(levels, given[1:], strict=False))
            if steps and len(steps) == len(given) - 1 and not steps.keys() & options.keys():
                keywords = ", ".join(f"{level}={shown(value)}" for level, value in steps.items())
                message = f"pass step sizes by keyword: {name}(problem, {keywords})"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                given, options = given[:1], options | steps
            if given or "problem" in options:
                check_problem(given[0] if given else options["problem"])
            for option, check in checks.items():
                if options.get(option) is not None:
                    options[option] = check(options[option])
            return make(*given, **options)

        return call  # pyright: ignore[reportReturnType]

    return decorate


def rule_of(level: str) -> Callable[[Any], Rule]:
    """Return the converter of a field that holds the rule of this level."""
    return partial(as_rule, level=level)


def positive(name: str) -> Callable[[Any], Any]:
    """Return the converter of a field that holds a positive number of this name."""
    return lambda value: (check_positive(value, name), value)[1]


def count(name: str) -> Callable[[Any], int]:
    """Return the converter of a field that holds a whole number of at least 1."""
    return lambda value: check_count(value, name)


def check_batches(batches: str) -> str:
    """Raise unless the terms of a step share one draw of the data or have one each."""
    return check_choice(batches, "batches", ("shared", "independent"))


def check_weight(value: Any, name: str, of: str) -> Any:
    """Return a positive number of at most 1, or a traced value, which has no value yet; raise for others."""
    check_positive(value, name)
    if not isinstance(value, Tracer) and as_number(value) > 1:  # pyright: ignore[reportOptionalOperand]
        raise ValueError(f"{name} is the weight of {of} and at most 1, not {shown(value)}: pass e.g. 0.1")
    return value
