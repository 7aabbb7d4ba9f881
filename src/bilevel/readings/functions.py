"""Contents of functions, and the names in their code."""

import contextvars
import dis
import functools
import os
import sys
import types
import weakref
from collections import UserDict, deque
from typing import Any, NamedTuple

CONTAINERS = (list, dict, set, deque, UserDict)
LOOK_UP = {"getattr", "globals", "vars", "__dict__"}  # names by which a function reads a quoted name
ENVIRONMENT = {"environ", "getenv"}
COLLECT = {"append", "extend", "add", "appendleft", "insert"}  # methods by which a function only writes


MISSING, WRITTEN = object(), object()
HOLDERS = (weakref.ref, *weakref.ProxyTypes, contextvars.ContextVar, types.CellType)


class Names(NamedTuple):
    """Names in the code of a function, and in the code of the functions inside it."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    modules: tuple[str, ...]  # imported by the function itself
    stored: frozenset[str]  # globals and closures that the function assigns
    collected: frozenset[str]  # globals and closures that the function only writes into
    settings: tuple[str, ...]  # variables of the environment that it may read

    def is_written(self, name: str, held: Any) -> bool:
        """Return whether this is a counter or a collection of the function, which tracing changes."""
        counts, collects = name in self.stored, name in self.collected
        return (counts and type(held) is int) or (collects and isinstance(held, CONTAINERS))


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> Names:
    """Return the names that this code and the code inside it use."""
    globals_, modules = dict[str, None](), dict[str, None]()
    attributes, stored, collected, used = set[str](), set[str](), set[str](), set[str]()
    codes, quoted = [code], dict[str, None]()
    while codes:
        code = codes.pop()
        quoted |= {constant: None for constant in code.co_consts if isinstance(constant, str)}
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        steps = list(dis.get_instructions(code))
        for i, step in enumerate(steps):
            following = steps[min(i + 1, len(steps) - 1)]
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
                attributes.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                modules[step.argval] = None
            elif step.opname == "STORE_GLOBAL" or (
                step.opname == "STORE_DEREF" and step.argval in code.co_freevars
            ):
                stored.add(step.argval)
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"):
                if "DEREF" not in step.opname:
                    globals_[step.argval] = None
                asks = following.opname in ("LOAD_ATTR", "LOAD_METHOD")
                puts = [each.opname for each in steps[i + 2 : i + 4]]  # name[key] = …, and name[key] += …
                collects = (asks and following.argval in COLLECT) or "STORE_SUBSCR" in puts[:1]
                (collected if collects or puts == ["COPY"] * 2 else used).add(step.argval)
    asked = attributes | globals_.keys()
    if asked & LOOK_UP:
        attributes |= quoted.keys()
    if "globals" in asked:
        globals_ |= quoted
    settings = tuple(quoted) if asked & ENVIRONMENT else ()
    kinds = frozenset(attributes), tuple(modules), frozenset(stored), frozenset(collected - used)
    return Names(tuple(globals_), *kinds, settings)


def function_state(function: types.FunctionType, names: Names | None) -> tuple[Any, ...]:
    """Return the contents to compare by identity; without names only the contents of installed functions."""
    attributes, by_keyword = function.__dict__, function.__kwdefaults__
    state = [function.__code__, function.__defaults__, by_keyword, *cells_of(function, names)]
    for held in (attributes, by_keyword):
        if held:
            state += [len(held), *held, *held.values()]
    if names is not None:
        state += globals_of(function, names)
        state += imports_of(function, names)
        state += settings_of(names)
    return tuple(state)


def cells_of(function: types.FunctionType, names: Names | None) -> list[Any]:
    held = [_contents(cell) for cell in function.__closure__ or ()]
    return _unwritten(function.__code__.co_freevars, held, names)


def globals_of(function: types.FunctionType, names: Names) -> list[Any]:
    space = function.__globals__
    return _unwritten(names.globals, [space.get(name, MISSING) for name in names.globals], names)


def imports_of(function: types.FunctionType, names: Names) -> list[Any]:
    """Return the modules that the function imports itself, each by its full and by its relative name."""
    package = function.__globals__.get("__package__")
    return [sys.modules.get(full, MISSING) for name in names.modules for full in (name, f"{package}.{name}")]


def settings_of(names: Names) -> list[str]:
    """Return the values of the environment variables; equal values are one object."""
    return [sys.intern(os.environ.get(name, "")) for name in names.settings]


def held_by(value: Any) -> tuple[Any, ...]:
    """Return the contents of a cell, a context variable or a weak reference."""
    if isinstance(value, weakref.ProxyType | weakref.CallableProxyType):
        return (value.__repr__.__self__,)
    if isinstance(value, contextvars.ContextVar):
        return (value.get(MISSING),)
    return (_contents(value) if isinstance(value, types.CellType) else value(),)


def _unwritten(held_names: tuple[str, ...], held: list[Any], names: Names | None) -> list[Any]:
    if names is None or not (names.stored or names.collected):
        return held
    pairs = zip(held_names, held, strict=True)
    return [WRITTEN if names.is_written(name, each) else each for name, each in pairs]


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def is_filled(cell: types.CellType) -> bool:
    return _contents(cell) is not MISSING
