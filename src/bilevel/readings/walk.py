"""The walk over everything that a function can reach."""

import collections
import functools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel.readings.arrays import array_token, as_array
from bilevel.readings.bytecode import CONTAINERS, names_in
from bilevel.readings.kinds import (
    EXACT,
    LIBRARIES,
    MACHINERY,
    NAMED,
    PLAIN,
    has_listed_attributes,
    is_derived,
    is_immutable,
    is_installed,
    is_library,
    slots_of,
)
from bilevel.readings.looks import (
    MISSING,
    WRITTEN,
    attributes_of,
    bases_of,
    function_parts,
    globals_of,
    items_of,
    named,
    pairs_of,
    state_of,
)

MOST_PARTS = 20_000  # a function that reads more is never unchanged
DEEPEST = 100  # objects within objects
JITTED = type(jax.jit(lambda: 0))
Look = tuple[Callable[..., tuple[Any, ...]], tuple[Any, ...], tuple[Any, ...]]  # function, arguments, result


class Reader:
    """An object that states what it reads, instead of all its attributes."""

    def reads(self) -> Any:
        raise NotImplementedError


class Part(NamedTuple):
    """Something that a function reads: `kind` is "value", "array", "code", "name", "shape" or "hidden"."""

    path: str
    kind: str
    value: Any


class Walk:
    """One walk over everything that can be reached; it visits each object once."""

    def __init__(self) -> None:
        self.found: list[Part] = []
        self.looks: list[Look] = []
        self.arrays: list[tuple[Any, Any]] = []  # mutable ones, with their digests
        self.complete = True  # whether the looks cover everything
        self.seen: dict[int, tuple[int, Any]] = {}
        self.depth = 0
        self.names: set[str] = set()  # attributes that any visited function asks for
        self.modules: dict[int, tuple[types.ModuleType, str, set[str]]] = {}  # with the names looked up

    @classmethod
    def of(cls, value: Any, name: str) -> "Walk":
        walk = cls()
        try:
            walk.visit(value, name)
            walk.visit_modules()
        except (OverflowError, RecursionError):
            walk.found, walk.complete = [Part(name, "hidden", object())], False  # equal to no other
        return walk

    def look(self, function: Callable[..., tuple[Any, ...]], *arguments: Any) -> tuple[Any, ...]:
        seen = function(*arguments)
        self.looks.append((function, arguments, seen))
        return seen

    def add(self, path: str, kind: str, value: Any) -> None:
        if len(self.found) >= MOST_PARTS:
            raise OverflowError(f"more than {MOST_PARTS} parts")
        self.found.append(Part(path, kind, value))

    def visit(self, value: Any, path: str) -> None:
        if type(value) in EXACT:
            self.add(path, "value", value)
            return
        if id(value) in self.seen:
            self.add(path, "shape", ("again", self.seen[id(value)][0]))  # the number of the earlier object
            return
        if self.depth >= DEEPEST:
            raise OverflowError(f"more than {DEEPEST} objects within each other")
        self.seen[id(value)] = len(self.seen), value
        self.depth += 1
        try:
            self._inside(value, path)
        except (OverflowError, RecursionError):
            raise
        except Exception:  # an object that raises when its attributes are read
            self.add(path, "hidden", value)
            self.complete = False
        self.depth -= 1

    def visit_modules(self) -> None:
        """Visit the names of modules that any function asks for; they may lead to further functions."""
        again = True
        while again:
            again = False
            for module, path, looked_up in list(self.modules.values()):
                names = tuple(sorted(self.names - looked_up))
                looked_up.update(names)
                for name, held in zip(names, self.look(named, vars(module), names), strict=True):
                    library = isinstance(held, types.ModuleType) and is_library(held.__name__)
                    if held is not MISSING and not library:
                        self.visit(held, f"{path}.{name}")
                        again = True

    def _inside(self, value: Any, path: str) -> None:
        kind = type(value)
        if issubclass(kind, PLAIN):
            self.add(path, "value", value)
            self._user_attributes(value, path)
        elif issubclass(kind, types.FunctionType):
            self._function(value, path)
        elif issubclass(kind, Reader):
            self.visit(*self.look(_read, value), path)
        elif issubclass(kind, types.MethodType):
            self.visit(value.__func__, path)
            self.visit(value.__self__, path)
        elif issubclass(kind, functools.partial | functools.partialmethod):
            for each in self.look(attributes_of, value, "func", "args", "keywords"):
                self.visit(each, path)
        elif issubclass(kind, NAMED):
            self.add(path, "name", value)
            owner = getattr(value, "__self__", None)
            if isinstance(owner, CONTAINERS):
                self.visit(owner, path)
        elif issubclass(kind, types.ModuleType):
            if not (getattr(value, "__file__", None) or "").startswith(LIBRARIES):
                self.modules.setdefault(id(value), (value, path, set()))
        elif issubclass(kind, type):
            self._class(value, path)
        elif issubclass(kind, tuple | list | collections.deque):
            held = self.look(tuple, value)
            self.add(path, "shape", (kind, len(held)))
            for i, each in enumerate(held):
                self.visit(each, f"{path}[{i}]")
            self._user_attributes(value, path)
        elif issubclass(kind, dict | types.MappingProxyType | collections.UserDict | collections.ChainMap):
            held = pairs_of(self.look(items_of, value))
            self.add(path, "shape", (kind, tuple(_key(key) for key, _ in held)))
            for key, each in held:
                self.visit(each, f"{path}[{_key(key)}]")
            self._user_attributes(value, path)
        elif issubclass(kind, set | frozenset):
            held = self.look(tuple, value)
            self.add(path, "shape", (kind, tuple(sorted(repr(each) for each in held if type(each) in EXACT))))
            for each in held:
                if type(each) not in EXACT:
                    self.add(path, "hidden", each)
        elif (array := as_array(value)) is not None:
            self._array(value, array, path)
        else:
            self._object(value, path)

    def _user_attributes(self, value: Any, path: str) -> None:
        """Visit what a value of a user's class has in addition to the members of its base class."""
        if not is_library(type(value).__module__):
            self.visit(type(value), path)
            self._attributes_of(value, path)

    def _array(self, value: Any, array: Any, path: str) -> None:
        masks = [np.ma.getmaskarray(array)] if isinstance(array, np.ma.MaskedArray) else []
        numbers = array.data if masks else array
        for mask in masks:
            self.add(path, "array", mask)
        if isinstance(numbers, np.ndarray) and (numbers.dtype.hasobject or numbers.dtype.kind == "T"):
            self.add(path, "shape", (numbers.dtype.str, numbers.shape))
            self.visit(numbers.ravel().tolist(), path)
            self.complete = False
        else:
            self.add(path, "array", numbers if isinstance(numbers, jax.Array) else np.asarray(numbers))
            if not isinstance(value, jax.Array):
                self.arrays.append((value, array_token(value)))
        if type(value) is not np.ndarray and not isinstance(value, jax.Array):
            self._user_attributes(value, path)

    def _function(self, function: types.FunctionType, path: str) -> None:
        installed = is_installed(function.__code__.co_filename)
        names = names_in(function.__code__)
        self.add(path, "name" if installed else "code", function)
        looked = self.look(function_parts, function, None if installed else names)
        code, defaults, keyword_defaults, *cells = looked
        self._visit_held(zip(code.co_freevars, cells, strict=True))
        attributes = pairs_of(self.look(items_of, function.__dict__))
        if installed:
            if "__wrapped__" in function.__dict__:
                self.visit(function.__dict__["__wrapped__"], path)
            return
        self.names |= names.attributes
        for name, held in attributes:
            self.visit(held, f"{path}.{name}")
        of_keywords = pairs_of(self.look(items_of, keyword_defaults)) if keyword_defaults else ()
        for default in (*(defaults or ()), *(held for _, held in of_keywords)):
            self.visit(default, f"{path} default".strip())
        self._visit_held(zip(names.globals, self.look(globals_of, function, names), strict=True))
        package = function.__globals__.get("__package__")
        imported = [(name, full) for name in names.modules for full in (name, f"{package}.{name}")]
        modules = self.look(named, sys.modules, tuple(full for _, full in imported))
        self._visit_held(zip((name for name, _ in imported), modules, strict=True))

    def _visit_held(self, held: Iterable[tuple[str, Any]]) -> None:
        for name, each in held:
            if each is not MISSING and each is not WRITTEN:
                self.visit(each, name)

    def _class(self, kind: type, path: str) -> None:
        self.add(path, "name", kind)
        for each in self.look(bases_of, kind):
            if not is_library(each.__module__):
                for name, held in pairs_of(self.look(items_of, vars(each))):
                    if name not in MACHINERY and (callable(held) or not name.startswith("__")):
                        self._member(held, f"{path}.{name}")

    def _member(self, held: Any, path: str) -> None:
        if isinstance(held, property):
            held = held.fget
        elif isinstance(held, classmethod | staticmethod):
            held = held.__func__
        elif isinstance(held, functools.cached_property):
            (held,) = self.look(attributes_of, held, "func")
        if not isinstance(held, NAMED):
            self.visit(held, path)

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        (wrapped,) = self.look(attributes_of, value, "__wrapped__") if callable(value) else (None,)
        if wrapped is not None and wrapped is not MISSING:  # a jitted function, for instance
            if not isinstance(value, JITTED):  # a custom derivative has more functions
                self._attributes_of(value, path)
            self.visit(wrapped, path)
        elif is_immutable(kind):
            self.add(path, "name", value)
        elif has_listed_attributes(kind):
            self.visit(kind, path)
            self._attributes_of(value, path)
        else:
            self.add(path, "hidden", value)

    def _attributes_of(self, value: Any, path: str) -> None:
        slots = slots_of(type(value))
        looked, count = self.look(state_of, value, slots)[1:], len(slots)
        of_slots = [
            (name, each) for name, each in zip(slots, looked[:count], strict=True) if each is not MISSING
        ]
        held = dict(pairs_of(looked[count:]) + of_slots)
        held = {name: each for name, each in held.items() if not is_derived(value, name)}
        if held:
            self.add(path, "shape", tuple(held))
        for name, each in held.items():
            self.visit(each, f"{path}.{name}")


def _read(reader: Reader) -> tuple[Any, ...]:
    return (reader.reads(),)


def _key(key: Any) -> str:
    return repr(key) if type(key) in EXACT else f"{type(key).__module__}.{type(key).__qualname__}"
