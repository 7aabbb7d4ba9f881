"""Kinds of Python objects: plain values, arrays, named objects, and objects of installed packages."""

import array
import collections
import datetime
import decimal
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
import threading
import types
import uuid
from argparse import Namespace
from typing import Any

import equinox
import jax
import jaxlib
import numpy as np
import optax
from jax.core import Tracer

PACKAGES = (jax, jaxlib, np, optax, equinox)  # wherever they are installed
FOLDERS = [
    sysconfig.get_path("stdlib"),
    *(str(pathlib.Path(str(each.__file__)).parent) for each in PACKAGES),
    str(pathlib.Path(__file__).parents[1]),
]
LIBRARIES = tuple(folder.rstrip(os.sep) + os.sep for folder in FOLDERS)
NUMBERS = (bool, int, float, complex, np.generic)
PLAIN = (
    *NUMBERS, str, bytes, enum.Enum, np.dtype, range, slice, re.Pattern, uuid.UUID, pathlib.PurePath, decimal.Decimal,
    fractions.Fraction, datetime.date, datetime.time, datetime.timedelta, jax.tree_util.PyTreeDef,
    type(None), type(...), type(NotImplemented),
)  # fmt: skip
EXACT = {bool, int, float, complex, str, bytes, type(None)}
NAMED = (  # compared by identity
    types.CodeType, Tracer, np.ufunc, types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, type(vars(collections.namedtuple("_", "field"))["field"]),
)  # fmt: skip
BUFFERS = (bytearray, memoryview, array.array, mmap.mmap)
MACHINERY = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__", "_abc_impl"}


def as_array(value: Any) -> Any:
    """Return an object that holds numbers as an array, or None for any other object."""
    if isinstance(value, np.ndarray | jax.Array):
        return value
    if isinstance(value, BUFFERS):
        return np.frombuffer(bytes(value), np.uint8)
    if hasattr(type(value), "__array__"):
        try:
            return np.asarray(value.detach() if hasattr(value, "detach") else value)  # of torch
        except Exception:  # for instance on a device that NumPy cannot read
            return None
    return None


def masks_of(values: Any) -> list[np.ndarray]:
    return [np.ma.getmaskarray(values)] if isinstance(values, np.ma.MaskedArray) else []


def array_token(value: Any) -> Any:
    """Return a digest of a mutable array and of its mask."""
    values = as_array(value)
    if values is None:
        return None
    return [(each.dtype.str, each.shape, digest(each)) for each in (*masks_of(values), np.asarray(values))]


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).view(np.uint8).data).hexdigest()


def key(value: Any) -> str:
    """Return the key of a mapping in words."""
    return repr(value) if type(value) in EXACT else f"{type(value).__module__}.{type(value).__qualname__}"


def has_listed_attributes(kind: type) -> bool:
    """Return whether Python can list the attributes; few classes of the standard library allow it."""
    if kind in (types.SimpleNamespace, Namespace, threading.local):
        return True
    root = kind.__module__.partition(".")[0] if isinstance(kind.__module__, str) else ""
    of_stdlib = root in sys.stdlib_module_names and is_library(kind.__module__)
    return not of_stdlib and (kind.__dictoffset__ != 0 or bool(slots_of(kind)))


@functools.lru_cache(maxsize=1024)
def slots_of(kind: type) -> tuple[str, ...]:
    return tuple(
        name
        for each in kind.__mro__
        if "__slots__" in vars(each)
        for name, held in vars(each).items()
        if isinstance(held, types.MemberDescriptorType)
    )


@functools.lru_cache(maxsize=1024)
def is_frozen(kind: type) -> bool:
    """Return whether the attributes never change: of Equinox modules and of frozen dataclasses of this package."""
    frozen = getattr(kind, "__dataclass_params__", None)
    ours = str(kind.__module__).startswith("bilevel.") and frozen is not None and frozen.frozen
    return ours or issubclass(kind, equinox.Module)


def is_derived(value: Any, name: str) -> bool:
    """Return whether an attribute follows from the other attributes."""
    cached = isinstance(getattr(type(value), name, None), functools.cached_property)
    return cached or name in MACHINERY or name == "__wrapped__"


def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package, and changes only with its version."""
    return any(part in file for part in ("site-packages", "dist-packages")) or file.startswith(LIBRARIES)


def is_library(module: Any) -> bool:
    """Return whether a module of this name is installed."""
    return not isinstance(module, str) or _is_library(module)


@functools.lru_cache(maxsize=4096)
def _is_library(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return is_installed(file) if file else module.partition(".")[0] in sys.stdlib_module_names
