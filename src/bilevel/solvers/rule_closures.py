"""Functions of an optax rule, with the numbers in their closures as leaves.

An optax transformation is a pair of functions that close over their settings. The walk below follows closures
to numbers and arrays, which become leaves of the rule. All else is equal for two transformations made in the
same way. They share compiled programs, and a sweep can vary the numbers. Functions of the user, such as
schedules and masks, are equal only to themselves.
"""

import types
from collections.abc import Hashable
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from bilevel.identity import Static
from bilevel.readings import Reader

LIBRARIES = ("optax", "jax", "bilevel")
PLAIN = (bool, int, str, bytes, complex, type(None), type, np.dtype)


class Closures(Reader):
    """Transformation without the numbers in its closures, except `fixed` numbers."""

    def __init__(self, value: Any, fixed: dict[str, Any] | None = None):
        self.value, self.fixed = value, fixed or {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without cached values, for cloudpickle and copies."""
        return {"value": self.value, "fixed": self.fixed}

    def reads(self) -> Any:
        return self._walked.brought

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """Return the numbers that are not fixed, by the names of their variables."""
        return {name: number for name, number in self._walked.numbers.items() if name not in self.fixed}

    @cached_property
    def _walked(self) -> "_Walk":
        walk = _Walk(None)
        walk.copy(self.value, "")
        return walk

    @cached_property
    def _key(self) -> Hashable:
        shown = tuple((name, type(number), repr(number)) for name, number in self.fixed.items())
        return tuple(self._walked.key), shown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Closures) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Closures({self.value!r})"

    def holding(self, numbers: dict[str, Any]) -> Any:
        """Return the transformation with these numbers in its closures."""
        given = self.fixed | numbers
        if not self.fixed and all(number is given[name] for name, number in self.numbers.items()):
            return self.value
        return _Walk(given).copy(self.value, "")


class _Walk:
    """Copy of a transformation down to the numbers; `given` replaces them."""

    def __init__(self, given: dict[str, Any] | None):
        self.given = given
        self.numbers: dict[str, Any] = {}
        self.brought: list[Any] = []  # objects of the user
        self.key: list[Hashable] = []
        self.cells: dict[int, tuple[int, types.CellType]] = {}

    def copy(self, value: Any, name: str) -> Any:
        if isinstance(value, types.FunctionType) and _is_library(value):
            return self._function(value)
        if isinstance(value, partial):
            parts = [value.func, *value.args, *value.keywords.values()]
            self.key.append(("partial", len(value.args), tuple(value.keywords)))
            function, *parts = [self.copy(part, name) for part in parts]
            words = dict(zip(value.keywords, parts[len(value.args) :], strict=True))
            return partial(function, *parts[: len(value.args)], **words)
        if isinstance(value, list | tuple):
            self.key.append((type(value), len(value)))
            parts = [self.copy(part, f"{name}[{i}]") for i, part in enumerate(value)]
            make: Any = type(value)
            return make(*parts) if hasattr(value, "_fields") else make(parts)
        if type(value) is dict:
            self.key.append(("dict", tuple(map(repr, value))))
            return {each: self.copy(part, str(each)) for each, part in value.items()}
        if _is_number(value):
            return self._number(value, name)
        if isinstance(value, PLAIN):
            self.key.append((type(value), value))
        else:
            self.key.append(Static(value))
            self.brought.append(value)
        return value

    def _number(self, value: Any, name: str) -> Any:
        count = sum(other.partition("#")[0] == name for other in self.numbers)
        name = f"{name}#{count + 1}" if count else name
        self.key.append(("number", name))
        self.numbers[name] = value
        return value if self.given is None else self.given[name]

    def _function(self, function: types.FunctionType) -> Any:
        self.key += [Static(function.__code__), Static(function.__globals__)]
        closure = tuple(map(self._cell, function.__code__.co_freevars, function.__closure__ or ()))
        defaults = self.copy(function.__defaults__, "default")
        copied = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, defaults, closure
        )
        copied.__kwdefaults__ = self.copy(function.__kwdefaults__, "default")
        copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
        return copied

    def _cell(self, name: str, cell: types.CellType) -> types.CellType:
        """Return the copy of a cell; functions that share a variable share its copy."""
        if id(cell) in self.cells:
            number, copied = self.cells[id(cell)]
            self.key.append(("cell", number))
            return copied
        copied = types.CellType()
        self.cells[id(cell)] = len(self.cells), copied
        try:
            contents = cell.cell_contents
        except ValueError:  # not set yet
            self.key.append("empty")
        else:
            copied.cell_contents = self.copy(contents, name)
        return copied


def _is_number(value: Any) -> bool:
    """Return whether a program can take the value as an argument."""
    if isinstance(value, float | np.floating):
        return True
    return isinstance(value, jax.Array | np.ndarray) and value.dtype != object


def _is_library(function: types.FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] in LIBRARIES
