"""Walk over everything that a function can reach."""

import collections
import functools
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel.readings import functions, kinds
from bilevel.readings.functions import LOOK_UP, MISSING, WRITTEN
from bilevel.readings.kinds import EXACT, is_library

MOST_PARTS = 20_000  # a function that reads more counts as changed
DEEPEST = 100  # objects within objects
JITTED = type(jax.jit(lambda: 0))
MAPPINGS = (dict, types.MappingProxyType, collections.UserDict, collections.ChainMap)
Look = tuple[Callable[..., tuple[Any, ...]], tuple[Any, ...], tuple[Any, ...]]  # function, arguments, result


class Reader:
    """Immutable object that states the values it reads, instead of all its attributes."""

    def reads(self) -> Any:
        raise NotImplementedError


class Part(NamedTuple):
    """Value that a function reads: `kind` is "value", "array", "code", "name", "shape" or "hidden"."""

    path: str
    kind: str
    value: Any


class Walk:
    """One walk over everything in reach; it visits each object once."""

    def __init__(self) -> None:
        self.found: list[Part] = []
        self.unordered: list[Part] = []  # within members of sets
        self.looks: list[Look] = []
        self.arrays: list[tuple[Any, Any]] = []  # mutable ones, with their digests
        self.complete: bool = True  # whether the looks cover everything
        self.seen: dict[int, tuple[int, Any]] = {}
        self.depth: int = 0
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
        """Return the function's result now, and record how to ask again."""
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
            self._visit_inside(value, path)
        except (OverflowError, RecursionError):
            raise
        except Exception:  # an object that raises when its attributes are read
            self.add(path, "hidden", value)
            self.complete = False
        self.depth -= 1

    def visit_each(self, named: Iterable[tuple[str, Any]]) -> None:
        for path, each in named:
            if each is not MISSING and each is not WRITTEN:
                self.visit(each, path)

    def visit_modules(self) -> None:
        """Visit the names of modules that any function asks for; they may lead to further functions."""
        again = True
        while again:
            again, read = False, self.found if self.names & LOOK_UP else []
            words = {part.value for part in read if type(part.value) is str}  # for getattr
            for module, path, looked_up in list(self.modules.values()):
                names = tuple(sorted((self.names | words) - looked_up))
                looked_up.update(names)
                for name, held in zip(names, self.look(_items_at, vars(module), names), strict=True):
                    library = isinstance(held, types.ModuleType) and is_library(held.__name__)
                    if held is not MISSING and not library:
                        self.visit(held, f"{path}.{name}")
                        again = True

    def _visit_inside(self, value: Any, path: str) -> None:
        kind = type(value)
        if issubclass(kind, kinds.PLAIN):
            self.add(path, "value", value)
            self._user_attributes(value, path)
        elif issubclass(kind, types.FunctionType):
            self._function(value, path)
        elif issubclass(kind, Reader):
            self.visit(value.reads(), path)
        elif issubclass(kind, types.MethodType):
            self.visit(value.__func__, path)
            self.visit(value.__self__, path)
        elif issubclass(kind, functools.partial | functools.partialmethod):
            for each in self.look(_attributes, value, "func", "args", "keywords"):
                self.visit(each, path)
        elif issubclass(kind, kinds.NAMED):
            self.add(path, "name", value)
            owner = getattr(value, "__self__", None)  # of a bound method
            if not isinstance(owner, type | types.ModuleType | None):
                self.visit(owner, path)
        elif issubclass(kind, types.ModuleType):
            if not (getattr(value, "__file__", None) or "").startswith(kinds.LIBRARIES):
                self.modules.setdefault(id(value), (value, path, set()))
        elif issubclass(kind, type):
            self._class(value, path)
        elif issubclass(kind, tuple | list | collections.deque):
            held = tuple(value) if issubclass(kind, tuple) else self.look(tuple, value)
            self.add(path, "shape", (kind, len(held)))
            self.visit_each((f"{path}[{i}]", each) for i, each in enumerate(held))
            self._user_attributes(value, path)
        elif issubclass(kind, MAPPINGS):
            held = _pairs(self.look(_items, value))
            self.add(path, "shape", (kind, tuple(kinds.key(key) for key, _ in held)))
            self.visit_each((f"{path}[{kinds.key(key)}]", each) for key, each in held)
            if issubclass(kind, collections.defaultdict):
                self.visit_each([(path, *self.look(_attributes, value, "default_factory"))])
            self._user_attributes(value, path)
        elif issubclass(kind, set | frozenset):
            held = self.look(tuple, value)
            self.add(path, "shape", (kind, tuple(sorted(repr(each) for each in held if type(each) in EXACT))))
            self._members([each for each in held if type(each) not in EXACT], path)
        elif (array := kinds.as_array(value)) is not None:
            self._array(value, array, path)
        elif hasattr(kind, "__array__"):  # numbers that NumPy cannot read are equal to no others
            self.add(path, "hidden", object())
            self.complete = False
        else:
            self._object(value, path)

    def _members(self, members: list[Any], path: str) -> None:
        """Visit members of a set separately: their order differs between processes."""
        for each in members:
            self.add(path, "hidden", each)
        found, self.found = self.found, self.unordered
        self.visit_each((path, each) for each in members)
        self.found = found

    def _user_attributes(self, value: Any, path: str) -> None:
        """Visit the contents of a user's object in addition to the members of its base class."""
        if not is_library(type(value).__module__):
            self.visit(type(value), path)
            self._attributes_of(value, path)

    def _array(self, value: Any, array: Any, path: str) -> None:
        masks = kinds.masks_of(array)
        numbers = array.data if masks else array
        self.found += [Part(path, "array", mask) for mask in masks]
        if isinstance(numbers, np.ndarray) and (numbers.dtype.hasobject or numbers.dtype.kind == "T"):
            self.add(path, "shape", (numbers.dtype.str, numbers.shape))
            self.visit(numbers.ravel().tolist(), path)
            self.complete = False
        else:
            self.add(path, "array", numbers if isinstance(numbers, jax.Array) else np.asarray(numbers))
            if not isinstance(value, jax.Array):
                self.arrays.append((value, kinds.array_token(value)))
        if type(value) is not np.ndarray and not isinstance(value, jax.Array):
            self._user_attributes(value, path)

    def _function(self, function: types.FunctionType, path: str) -> None:
        code, installed = function.__code__, kinds.is_installed(function.__code__.co_filename)
        names = functions.names_in(code)
        self.add(path, "name" if installed else "code", function)
        known = None if installed else names
        self.look(functions.function_state, function, known)
        self.visit_each(zip(code.co_freevars, functions.cells_of(function, known), strict=True))
        if installed:
            self.visit_each([(path, function.__dict__.get("__wrapped__", MISSING))])
            return
        self.names |= names.attributes | LOOK_UP.intersection(names.globals)
        self.visit_each(("os.environ", setting) for setting in functions.settings_of(names))
        self.visit_each((f"{path}.{name}", held) for name, held in list(function.__dict__.items()))
        defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
        self.visit_each((f"{path} default".strip(), default) for default in defaults)
        self.visit_each(zip(names.globals, functions.globals_of(function, names), strict=True))
        by_both_names = [name for name in names.modules for _ in "12"]
        self.visit_each(zip(by_both_names, functions.imports_of(function, names), strict=True))

    def _class(self, kind: type, path: str) -> None:
        self.add(path, "name", kind)
        if is_library(kind.__module__):
            return
        for each in self.look(_bases, kind):
            if not is_library(each.__module__):
                for name, held in _pairs(self.look(_items, vars(each))):
                    is_function = callable(held) or isinstance(held, classmethod)
                    if name not in kinds.MACHINERY and (is_function or not name.startswith("__")):
                        self._member(held, f"{path}.{name}")

    def _member(self, held: Any, path: str) -> None:
        if isinstance(held, property):
            held = held.fget
        elif isinstance(held, classmethod | staticmethod):
            held = held.__func__
        elif isinstance(held, functools.cached_property):
            (held,) = self.look(_attributes, held, "func")
        if not isinstance(held, kinds.NAMED):
            self.visit(held, path)

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        (wrapped,) = self.look(_attributes, value, "__wrapped__") if callable(value) else (MISSING,)
        if wrapped is not None and wrapped is not MISSING:  # a jitted function, for instance
            if not isinstance(value, JITTED):  # a custom derivative has more functions
                self._attributes_of(value, path)
            self.visit(wrapped, path)
        elif kind.__module__.partition(".")[0] in ("jax", "jaxlib"):
            self.add(path, "name", value)
        elif kinds.has_listed_attributes(kind):
            self.visit(kind, path)
            self._attributes_of(value, path)
        elif issubclass(kind, functions.HOLDERS):
            self.visit_each([(path, *self.look(functions.held_by, value))])
        elif isinstance(value, Collection):
            self.visit(dict(value) if isinstance(value, Mapping) else tuple(value), path)
            self.complete = False
        else:
            self.add(path, "hidden", value)

    def _attributes_of(self, value: Any, path: str) -> None:
        slots = kinds.slots_of(type(value))
        state = _state(value, slots) if kinds.is_frozen(type(value)) else self.look(_state, value, slots)
        held = dict(_pairs(state[1 + len(slots) :]))
        held |= {k: each for k, each in zip(slots, state[1:], strict=False) if each is not MISSING}
        held = {name: each for name, each in held.items() if not kinds.is_derived(value, name)}
        if held:
            self.add(path, "shape", tuple(held))
        self.visit_each((f"{path}.{name}", each) for name, each in held.items())


# The contents of one mutable object, to compare by identity with its contents at another time.


def _items_at(mapping: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([mapping.get(name, MISSING) for name in names])


def _items(mapping: Any) -> tuple[Any, ...]:
    items = mapping.items()
    return *(key for key, _ in items), *(value for _, value in items)


def _attributes(value: Any, *names: str) -> tuple[Any, ...]:
    return tuple([getattr(value, name, MISSING) for name in names])


def _state(value: Any, slots: tuple[str, ...]) -> tuple[Any, ...]:
    held = getattr(value, "__dict__", {})
    return type(value), *_attributes(value, *slots), *held, *held.values()


def _bases(kind: type) -> tuple[type, ...]:
    metaclass: type = type(kind)
    return *kind.__mro__, *metaclass.__mro__


def _pairs(looked: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Return the items of a mapping from its keys followed by its values."""
    half = len(looked) // 2
    return list(zip(looked[:half], looked[half:], strict=True))
