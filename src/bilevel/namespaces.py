"""Packages that load their names at first use."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from threading import RLock
from types import MappingProxyType
from typing import Any

LOADING = RLock()  # without it, two threads that import each other's modules would raise an error in Python


def lazy_names(
    package: str,
    homes: dict[str, str],
    modules: Iterable[str] = (),
    moved: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the functions `__getattr__` and `__dir__` and the list `__all__` of a package.

    Every module of the package is an attribute too, even if it is not listed.

    Args:
        package: its `__name__`.
        homes: the full name of the module that defines each name.
        modules: the public modules of the package.
        moved: the new package of each name that moved. Old names work for one release, with a DeprecationWarning.
    """
    public = sorted([*homes, *modules])

    def load(name: str) -> Any:
        if name in moved:
            new = f"{moved[name]}.{name}".replace("bilevel.", "bl.", 1)
            warnings.warn(f"bl.{name} is now {new}", DeprecationWarning, stacklevel=2)
            return getattr(import_module(moved[name]), name)
        if name not in homes and not _is_module(package, name):
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[package])  # so that Python suggests one
        with LOADING:
            home = import_module(homes.get(name, f"{package}.{name}"))
            value = getattr(home, name) if name in homes else home
            setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return [*public, *(name for name in vars(sys.modules[package]) if name.startswith("__"))]

    return load, names, public


def _is_module(package: str, name: str) -> bool:
    return name.isidentifier() and name[0] != "_" and find_spec(f"{package}.{name}") is not None
