"""Identity of functions, and descriptions of them that other processes can compare."""

import functools
import hashlib
import types
from collections.abc import Callable, Iterable
from typing import Any

from bilevel.readings import Reader, is_filled


class Static(Reader):
    """Function (or another value) that a compiled program depends on. It is equal only to itself.

    Python makes a method at every access, so methods are compared by their function and their object.
    """

    def __init__(self, value: Any):
        self.value = value

    def reads(self) -> Any:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and all(
            a is b for a, b in zip(_itself(self.value), _itself(other.value), strict=True)
        )

    def __hash__(self) -> int:
        return hash(tuple(map(id, _itself(self.value))))

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


def by_identity(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values as a key: functions are compared by identity, numbers and strings by value."""
    return tuple(Static(each) if callable(each) else each for each in values)


def _itself(value: Any) -> tuple[Any, Any]:
    return (value.__func__, value.__self__) if isinstance(value, types.MethodType) else (value, None)


def described(function: Callable[..., Any]) -> str:
    """Return the function's name and a digest of its code, equal in all processes that run the same source."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = _code(function)
    return name if code is None else f"{name}#{digest_of(code)[:12]}"


def skeleton(value: Any) -> str:
    """Return a digest of the functions and settings of a rule made of closures, without its numbers."""
    return hashlib.sha256(repr(_skeleton(value, ())).encode()).hexdigest()[:12]


def _skeleton(value: Any, above: tuple[int, ...]) -> Any:
    if isinstance(value, bool | int | str | None):
        return value
    if id(value) in above:
        return "above"
    within = (*above, id(value))
    if isinstance(value, types.FunctionType):
        within_cells = [_skeleton(cell, within) for cell in _cells(value)]
        return value.__qualname__, digest_of(value.__code__), within_cells
    if isinstance(value, tuple | list):
        return [_skeleton(each, within) for each in value]
    if isinstance(value, dict):
        return [(str(name), _skeleton(each, within)) for name, each in value.items()]
    return type(value).__name__


def _cells(function: types.FunctionType) -> list[Any]:
    """Return the values that the function closes over, without cells that are still empty."""
    return [cell.cell_contents for cell in function.__closure__ or () if is_filled(cell)]


def _code(function: Any) -> types.CodeType | None:
    function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        function = vars(type(function)).get("__call__")
    return getattr(function, "__code__", None)


def digest_of(code: types.CodeType) -> str:
    constants = [digest_of(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    parts: Iterable[object] = (code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)
    return hashlib.sha256(repr(tuple(parts)).encode()).hexdigest()


def _constant(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
