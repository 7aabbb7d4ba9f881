"""When two functions are the same function, and what to write down about one.

A rule such as `optax.adam(1e-3)` is made of closures, and closures made twice are different objects. What they do
is the same if they have the same code and close over the same values; then one compiled program serves both.
"""

import collections
import dis
import enum
import functools
import hashlib
import sysconfig
import types
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

LIBRARIES = tuple({sysconfig.get_path("stdlib"), str(Path(__file__).parent)})  # Python's, and this one
_BY_VALUE = (bool, int, float, complex, str, bytes, types.CodeType, type, jax.tree_util.PyTreeDef)


class Static:
    """A value that a compiled program depends on, equal to another one that was made the same way."""

    def __init__(self, value: Any, signature: Hashable | None = None):
        self.value = value  # kept alive: a signature may contain the address of a part of it
        self._signature = made_of(value) if signature is None else signature

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._signature == other._signature

    def __hash__(self) -> int:
        return hash(self._signature)

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


def made_of(value: Any) -> Hashable:
    """The code and the captured values of a function; the entries of a container; anything else is only itself."""
    return _made_of(value, ())


def _made_of(value: Any, above: tuple[int, ...]) -> Hashable:
    if value is None or isinstance(value, _BY_VALUE):
        return type(value), value
    if id(value) in above:  # a function that closes over itself
        return "above", above.index(id(value))
    within = (*above, id(value))
    parts = lambda values: tuple(_made_of(each, within) for each in values)
    if isinstance(value, types.FunctionType):
        return _function(value, within), _read_by(value, within)
    if isinstance(value, types.MethodType):
        return "method", parts((value.__func__,)), id(value.__self__)
    if isinstance(value, functools.partial):
        return (
            "partial",
            parts((value.func, *value.args)),
            tuple(value.keywords),
            parts(value.keywords.values()),
        )
    if isinstance(value, tuple | list):
        return type(value), parts(value)
    if isinstance(value, dict):
        return "dict", tuple(map(str, value)), parts(value.values())
    return "object", id(value)


def _function(value: types.FunctionType, within: tuple[int, ...]) -> Hashable:
    closed_over = tuple(_made_of(each, within) for each in _closed_over(value))
    # Globals are looked up where the function was defined, so they belong to it.
    return "function", value.__code__, id(value.__globals__), closed_over


def _read_by(function: types.FunctionType, within: tuple[int, ...]) -> Hashable:
    """What a function of the user's reads by name, itself or in helpers, as it is now.

    In a script or a notebook a loop over a setting makes the same function again and again, and only this differs.
    """
    helpers, seen, found = [function], {id(function)}, list[Hashable]()
    while helpers:
        for each in () if _of_a_library(helper := helpers.pop()) else _globals_of(helper):
            if not isinstance(each, types.FunctionType):
                found.append(_global(each, within))
            elif id(each) not in seen:
                seen.add(id(each))
                helpers.append(each)
                found.append(_function(each, (*within, id(each))))
    return tuple(found)


def _global(value: Any, within: tuple[int, ...]) -> Hashable:
    if value is None or isinstance(value, _BY_VALUE):
        return _made_of(value, within)
    if id(value) not in within and isinstance(value, tuple | dict):  # lists are there to collect things
        values = value.values() if isinstance(value, dict) else value
        inside = tuple(_global(each, (*within, id(value))) for each in values)
        return type(value), tuple(map(str, value)) if isinstance(value, dict) else (), inside
    return _Itself(value)


class _Itself:
    """Kept alive: once its name stands for something else, its address could be that of another."""

    def __init__(self, value: Any):
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _cells(function: types.FunctionType) -> list[Any]:
    """What it closes over, as far as that is there already."""
    return [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]


def _filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def described(function: Callable[..., Any]) -> str:
    """The function's name and a digest of its code, the same in every process that runs the same source."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = _code(function)
    return name if code is None else f"{name}#{_digest(code)[:12]}"


def skeleton(value: Any) -> str:
    """A rule made of closures: a digest of all the functions in it and of their settings, but not of its numbers."""
    return hashlib.sha256(repr(_skeleton(value, ())).encode()).hexdigest()[:12]


def _skeleton(value: Any, above: tuple[int, ...]) -> Any:
    if isinstance(value, bool | int | str | None):
        return value
    if id(value) in above:
        return "above"
    within = (*above, id(value))
    if isinstance(value, types.FunctionType):
        within_cells = [_skeleton(cell, within) for cell in _cells(value)]
        return value.__qualname__, _digest(value.__code__), within_cells
    if isinstance(value, tuple | list):
        return [_skeleton(each, within) for each in value]
    if isinstance(value, dict):
        return [(str(name), _skeleton(each, within)) for name, each in value.items()]
    return type(value).__name__


def captured(value: Any) -> list[Any]:
    """What a function does and depends on besides its arguments, in order: code, numbers, words and arrays.

    Of the user's functions, what they close over, their defaults, and the globals they read; of a library's, its name
    and what it closes over. Lists and sets may be there to collect things, so of them only floats and arrays count.
    """
    return list(_captured(value, set(), False))


def _captured(value: Any, seen: set[int], collects: bool) -> Iterable[Any]:
    if value is None or isinstance(value, bool | int | str | bytes | enum.Enum):
        if not collects:
            yield str(value)
        return
    if isinstance(value, float | complex | np.ndarray | np.generic | jax.Array):
        yield value
        return
    if id(value) in seen or isinstance(value, types.ModuleType | type):
        return
    seen.add(id(value))
    if isinstance(value, functools.partial):
        parts: Iterable[Any] = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        parts = (value.__func__, value.__self__)
    elif isinstance(value, types.FunctionType):
        yield f"{value.__module__}.{value.__qualname__}" if _of_a_library(value) else _digest(value.__code__)
        parts = (*_closed_over(value), *(() if _of_a_library(value) else _globals_of(value)))
    elif isinstance(value, tuple):
        parts = value
    elif isinstance(value, list | set | frozenset | collections.deque):
        parts, collects = (value if isinstance(value, list) else ()), True
    elif isinstance(value, dict):
        parts = value.values()
    elif callable(getattr(value, "__wrapped__", None)):  # jitted and the like
        parts = (value.__wrapped__,)
    elif isinstance(value, Static):
        parts = (value.value,)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}"
        parts = (*_methods_of(type(value)), *getattr(value, "__dict__", {}).values())
    for part in parts:
        yield from _captured(part, seen, collects)


def _closed_over(function: types.FunctionType) -> list[Any]:
    return [*_cells(function), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _globals_of(function: types.FunctionType) -> list[Any]:
    """Those that the function reads, itself or in functions within it, and does not set."""
    return [
        function.__globals__[name] for name in _names_in(function.__code__) if name in function.__globals__
    ]


@functools.lru_cache(maxsize=1024)
def _names_in(code: types.CodeType) -> tuple[str, ...]:
    codes, read = [code], dict[str, None]()
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        steps = list(dis.get_instructions(code))
        own = {step.argval for step in steps if step.opname == "STORE_GLOBAL"}
        read |= {
            step.argval: None for step in steps if step.opname == "LOAD_GLOBAL" and step.argval not in own
        }
    return tuple(read)


def _methods_of(kind: type) -> list[Any]:
    """Of a class of the user's and those it is made of."""
    return [
        method
        for each in kind.__mro__
        for method in vars(each).values()
        if isinstance(method, types.FunctionType) and not _of_a_library(method)
    ]


def _of_a_library(function: Any) -> bool:
    """Whether it is installed, and changes only with its version."""
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return any(part in file for part in ("site-packages", "dist-packages")) or file.startswith(LIBRARIES)


def _code(function: Any) -> types.CodeType | None:
    function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        function = vars(type(function)).get("__call__")
    return getattr(function, "__code__", None)


def _digest(code: types.CodeType) -> str:
    constants = [_digest(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    parts: Iterable[object] = (code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)
    return hashlib.sha256(repr(tuple(parts)).encode()).hexdigest()


def _constant(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
