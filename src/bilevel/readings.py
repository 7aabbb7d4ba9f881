"""What functions read besides their arguments, as it is now.

A compiled program keeps the values that its functions read while they were traced: closures, defaults, globals,
attributes of objects, classes and modules. `parts` lists them, each with the path by which the function reaches it.
`reading` makes of that list a value to compare within this process: if it is equal, tracing again would give the same
program. Checkpoints compare the same list between processes (`loop/checkpoints/origin.py`).

What is not followed: code of installed packages, attributes with names that are computed, and the inside of objects
that Python cannot list ("hidden"); those are compared by identity.
"""

import array
import collections
import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import mmap
import os
import pathlib
import re
import sys
import sysconfig
import types
import uuid
from argparse import Namespace
from typing import Any, NamedTuple

import equinox
import jax
import jaxlib
import numpy as np
import optax
from jax.core import Tracer

MOST = 20_000  # parts; what reads more is never taken for unchanged
DEEPEST = 100  # objects within objects
PACKAGES = (jax, jaxlib, np, optax, equinox, sys.modules[__name__])  # wherever they are installed
FOLDERS = [sysconfig.get_path("stdlib"), *(str(pathlib.Path(str(each.__file__)).parent) for each in PACKAGES)]
LIBRARIES = tuple(folder.rstrip(os.sep) + os.sep for folder in FOLDERS)
NUMBERS = (bool, int, float, complex, np.generic)
PLAIN = (
    *NUMBERS, str, bytes, enum.Enum, np.dtype, range, slice, re.Pattern, uuid.UUID, pathlib.PurePath, decimal.Decimal,
    fractions.Fraction, datetime.date, datetime.time, datetime.timedelta, jax.tree_util.PyTreeDef,
    type(None), type(...), type(NotImplemented),
)  # fmt: skip
BUFFERS = (bytearray, memoryview, array.array, mmap.mmap)
JITTED = type(jax.jit(lambda: 0))
PRIMITIVE = ("jax", "jaxlib")  # packages whose objects, but for arrays, are as immutable as functions
NAMED = (  # by their names only
    types.CodeType, Tracer, np.ufunc, types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, type(vars(collections.namedtuple("_", "field"))["field"]),
)  # fmt: skip
CONTAINERS = (list, dict, set, collections.deque, collections.UserDict)
EXACT = {bool, int, float, complex, str, bytes, type(None)}
MACHINERY = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__", "_abc_impl"}
COLLECT = {"append", "extend", "add", "appendleft", "insert"}  # methods by which a function only writes


class Reader:
    """An object that states what it reads, instead of all its attributes."""

    def reads(self) -> Any:
        raise NotImplementedError


class Part(NamedTuple):
    """Something that a function reads: `kind` is "value", "array", "code", "name", "shape" or "hidden"."""

    path: str
    kind: str
    value: Any


class Reading(NamedTuple):
    """Equal to another one if nothing that was read has changed."""

    tokens: tuple[Any, ...]
    alive: tuple[Any, ...]  # what is compared by its identity, which would be free for others if it were gone

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reading) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash(self.tokens)


def reading(*values: Any) -> Reading:
    """Return what these functions (or objects that hold functions) read now."""
    found = [part for value in values for part in parts(value)]
    alive = [part.value for part in found if part.kind in ("code", "name", "hidden") or _is_jax(part)]
    alive += [part.value.__code__ for part in found if isinstance(part.value, types.FunctionType)]
    return Reading(tuple((part.path, *_token(part)) for part in found), tuple(alive))


def _token(part: Part) -> tuple[Any, ...]:
    value = part.value
    if part.kind == "value":
        exact = isinstance(value, int | str | jax.tree_util.PyTreeDef)
        return type(value), value if exact else repr(value)
    if part.kind == "shape":
        return (value,)
    if part.kind == "array" and not _is_jax(part):
        return value.dtype.str, value.shape, digest(value)
    if isinstance(
        value, types.FunctionType
    ):  # an installed function is its code: optax makes new ones for every rule
        return (id(value.__code__),) if part.kind == "name" else (id(value), id(value.__code__))
    return (id(value),)


def _is_jax(part: Part) -> bool:
    """Whether it is an array that cannot change."""
    return part.kind == "array" and isinstance(part.value, jax.Array)


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).view(np.uint8).data).hexdigest()


def parts(value: Any, name: str = "") -> list[Part]:
    """List what a function, or an object that holds functions, reads; in an order that depends on nothing else."""
    walk = _Walk()
    try:
        walk.visit(value, name)
        walk.visit_modules()
    except (OverflowError, RecursionError):
        return [Part(name, "hidden", object())]  # equal to no other
    return walk.found


class _Walk:
    """One walk over everything that can be reached; each object is visited once."""

    def __init__(self) -> None:
        self.found: list[Part] = []
        self.seen: dict[int, tuple[int, Any]] = {}
        self.depth = 0
        self.attributes: set[str] = set()  # that any function on the way asks for
        self.modules: dict[
            int, tuple[types.ModuleType, str, set[str]]
        ] = {}  # with the names looked up so far

    def add(self, path: str, kind: str, value: Any) -> None:
        if len(self.found) >= MOST:
            raise OverflowError(f"more than {MOST} parts")
        self.found.append(Part(path, kind, value))

    def visit(self, value: Any, path: str) -> None:
        if type(value) in EXACT:
            self.add(path, "value", value)
            return
        if id(value) in self.seen:  # which of the objects before it is
            self.add(path, "shape", ("again", self.seen[id(value)][0]))
            return
        if self.depth >= DEEPEST:
            raise OverflowError(f"more than {DEEPEST} objects within each other")
        self.seen[id(value)] = len(self.seen), value
        self.depth += 1
        try:
            self._inside(value, path)
        except (OverflowError, RecursionError):
            raise
        except Exception:  # an object that does not let one look into it
            self.add(path, "hidden", value)
        self.depth -= 1

    def visit_modules(self) -> None:
        """Of modules, what any function asks for by name: which may reach further functions."""
        again = True
        while again:
            again = False
            for module, path, looked_up in list(self.modules.values()):
                held = vars(module)
                for name in sorted((self.attributes & held.keys()) - looked_up):
                    looked_up.add(name)
                    if not isinstance(held[name], types.ModuleType) or not _is_library(held[name].__name__):
                        self.visit(held[name], f"{path}.{name}")
                        again = True

    def _inside(self, value: Any, path: str) -> None:
        kind = type(value)
        if issubclass(kind, PLAIN):
            self.add(path, "value", value)
            self._own(value, path)
        elif issubclass(kind, types.FunctionType):
            self._function(value, path)
        elif issubclass(kind, Reader):
            self.visit(value.reads(), path)
        elif issubclass(kind, types.MethodType):
            self.visit(value.__func__, path)
            self.visit(value.__self__, path)
        elif issubclass(kind, functools.partial | functools.partialmethod):
            for each in (value.func, value.args, value.keywords):
                self.visit(each, path)
        elif issubclass(kind, NAMED):
            self.add(path, "name", value)
            if isinstance(getattr(value, "__self__", None), CONTAINERS):
                self.visit(value.__self__, path)
        elif issubclass(kind, types.ModuleType):
            if not (getattr(value, "__file__", None) or "").startswith(LIBRARIES):
                self.modules.setdefault(id(value), (value, path, set()))
        elif issubclass(kind, type):
            self._class(value, path)
        elif issubclass(kind, tuple | list | collections.deque):
            self.add(path, "shape", (kind, len(value)))
            for i, each in enumerate(value):
                self.visit(each, f"{path}[{i}]")
            self._own(value, path)
        elif issubclass(kind, dict | types.MappingProxyType | collections.UserDict | collections.ChainMap):
            self.add(path, "shape", (kind, tuple(map(_key, value))))
            for key, each in list(value.items()):
                self.visit(each, f"{path}[{_key(key)}]")
            self._own(value, path)
        elif issubclass(kind, set | frozenset):
            self._set(value, path)
        elif (numbers := _array(value)) is not None:
            self._numbers(numbers, path)
            if kind is not np.ndarray and not isinstance(value, jax.Array):
                self._own(value, path)
        else:
            self._object(value, path)

    def _own(self, value: Any, path: str) -> None:
        """What a value of a class of the user's has besides what its base class has."""
        if not _is_library(type(value).__module__):
            self.visit(type(value), path)
            self._attributes(value, path)

    def _numbers(self, numbers: Any, path: str) -> None:
        if isinstance(numbers, np.ma.MaskedArray):
            self.add(path, "array", np.ma.getmaskarray(numbers))
            numbers = numbers.data
        if isinstance(numbers, np.ndarray) and (numbers.dtype.hasobject or numbers.dtype.kind == "T"):
            self.add(path, "shape", (numbers.dtype.str, numbers.shape))
            self.visit(numbers.ravel().tolist(), path)
        else:
            self.add(path, "array", numbers if isinstance(numbers, jax.Array) else np.asarray(numbers))

    def _function(self, function: types.FunctionType, path: str) -> None:
        installed, read = is_installed(function), _reads(function.__code__)
        self.add(path, "name" if installed else "code", function)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if is_filled(cell) and (installed or not read.is_written(name, cell.cell_contents)):
                self.visit(cell.cell_contents, name)
        if installed:
            if "__wrapped__" in function.__dict__:
                self.visit(function.__dict__["__wrapped__"], path)
            return
        self.attributes |= read.attributes
        for name, held in function.__dict__.items():
            self.visit(held, f"{path}.{name}")
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(default, f"{path} default".strip())
        for name in read.globals:
            if name in function.__globals__ and not read.is_written(name, function.__globals__[name]):
                self.visit(function.__globals__[name], name)
        for name in read.modules:
            for full in (name, f"{function.__globals__.get('__package__')}.{name}"):
                if full in sys.modules:
                    self.visit(sys.modules[full], name)

    def _class(self, kind: type, path: str) -> None:
        self.add(path, "name", kind)
        for each in kind.__mro__:
            if not _is_library(each.__module__):
                for name, held in list(vars(each).items()):
                    if name not in MACHINERY and (callable(held) or not name.startswith("__")):
                        self._member(held, f"{path}.{name}")

    def _member(self, held: Any, path: str) -> None:
        if isinstance(held, property):
            held = held.fget
        elif isinstance(held, classmethod | staticmethod):
            held = held.__func__
        elif isinstance(held, functools.cached_property):
            held = held.func
        if not isinstance(held, NAMED):
            self.visit(held, path)

    def _set(self, value: Any, path: str) -> None:
        plain = sorted(repr(each) for each in value if type(each) in EXACT)
        self.add(path, "shape", (type(value), tuple(plain)))
        for each in value:
            if type(each) not in EXACT:
                self.add(path, "hidden", each)

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
        if wrapped is not None:  # jitted and the like
            if not isinstance(value, JITTED):  # a custom derivative has more functions
                self._attributes(value, path)
            self.visit(wrapped, path)
        elif kind.__module__.partition(".")[0] in PRIMITIVE:
            self.add(path, "name", value)
        elif _is_listed(kind):
            self.visit(kind, path)
            self._attributes(value, path)
        else:
            self.add(path, "hidden", value)

    def _attributes(self, value: Any, path: str) -> None:
        held = dict(getattr(value, "__dict__", {}))
        for slot in _slots(type(value)):
            if hasattr(value, slot):
                held[slot] = getattr(value, slot)
        held = {name: each for name, each in held.items() if not _is_derived(value, name)}
        if held:
            self.add(path, "shape", tuple(held))
        for name, each in held.items():
            self.visit(each, f"{path}.{name}")


def _key(key: Any) -> str:
    return repr(key) if type(key) in EXACT else f"{type(key).__module__}.{type(key).__qualname__}"


def _is_derived(value: Any, name: str) -> bool:
    """Whether an attribute follows from the others."""
    cached = isinstance(getattr(type(value), name, None), functools.cached_property)
    return cached or name in MACHINERY or name == "__wrapped__"


def _array(value: Any) -> Any:
    """As an array, whatever holds numbers and says so; else None."""
    if isinstance(value, np.ndarray | jax.Array):
        return value
    if isinstance(value, BUFFERS):
        return np.frombuffer(bytes(value), np.uint8)
    if hasattr(type(value), "__array__"):
        try:
            return np.asarray(value)
        except Exception:  # on a device that NumPy cannot read, for instance
            return None
    return None


def _is_listed(kind: type) -> bool:
    """Whether Python can list what an object of this class holds; of the standard library, few say all."""
    if kind in (types.SimpleNamespace, Namespace):
        return True
    return not _of_stdlib(kind.__module__) and (kind.__dictoffset__ != 0 or bool(_slots(kind)))


def _slots(kind: type) -> list[str]:
    return [
        name
        for each in kind.__mro__
        if "__slots__" in vars(each)
        for name, held in vars(each).items()
        if isinstance(held, types.MemberDescriptorType)
    ]


class Reads(NamedTuple):
    """What the code of a function asks for by name, with the functions inside it."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    modules: tuple[str, ...]  # that it imports
    stored: frozenset[str]  # globals and closures that it sets itself
    collected: frozenset[str]  # those that it only writes into

    def is_written(self, name: str, held: Any) -> bool:
        """Whether it is a counter or a collection of the function's own, which tracing changes."""
        counts, collects = name in self.stored, name in self.collected
        return (counts and type(held) is int) or (collects and isinstance(held, CONTAINERS))


@functools.lru_cache(maxsize=4096)
def _reads(code: types.CodeType) -> Reads:
    globals_, modules = dict[str, None](), dict[str, None]()
    attributes, stored, collected, used = set[str](), set[str](), set[str](), set[str]()
    codes = [code]
    while codes:
        code = codes.pop()
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
                collects = (
                    (asks and following.argval in COLLECT)
                    or "STORE_SUBSCR" in puts[:1]
                    or puts == ["COPY"] * 2
                )
                (collected if collects else used).add(step.argval)
    return Reads(
        tuple(globals_), frozenset(attributes), tuple(modules), frozenset(stored), frozenset(collected - used)
    )


def is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def is_installed(function: types.FunctionType) -> bool:
    """Whether it belongs to Python or to an installed package, and changes only with its version."""
    file = function.__code__.co_filename
    return any(part in file for part in ("site-packages", "dist-packages")) or file.startswith(LIBRARIES)


def _is_library(module: Any) -> bool:
    """The same of a class or a module, by the name of the module."""
    return not isinstance(module, str) or _is_library_name(module)


@functools.lru_cache(maxsize=4096)
def _is_library_name(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file:
        return any(part in file for part in ("site-packages", "dist-packages")) or file.startswith(LIBRARIES)
    return module.partition(".")[0] in sys.stdlib_module_names


def _of_stdlib(module: Any) -> bool:
    root = module.partition(".")[0] if isinstance(module, str) else ""
    return root in sys.stdlib_module_names and _is_library(module)
