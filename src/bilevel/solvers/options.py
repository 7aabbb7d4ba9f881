"""Options of solvers: converters of their fields, and a decorator of the functions that make solvers."""

import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial, wraps
from inspect import signature
from typing import Any, TypeVar

from bilevel.checks import check_choice, check_count, check_positive, check_problem
from bilevel.solvers.rules import Rule, as_rule
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
        checks = {field.name: field.metadata["converter"] for field in made if "converter" in field.metadata}

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
