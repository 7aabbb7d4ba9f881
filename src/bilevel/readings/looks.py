"""Functions that return the parts of one mutable object, to compare by identity with those at another time."""

import types
from typing import Any

from bilevel.readings.bytecode import Names

MISSING, WRITTEN = object(), object()


def function_parts(function: types.FunctionType, names: Names | None) -> tuple[Any, ...]:
    """Return its code, defaults and cells, except the cells that it writes."""
    code = function.__code__
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    return code, function.__defaults__, function.__kwdefaults__, *_unwritten(code.co_freevars, cells, names)


def globals_of(function: types.FunctionType, names: Names) -> tuple[Any, ...]:
    space = function.__globals__
    return _unwritten(names.globals, [space.get(name, MISSING) for name in names.globals], names)


def _unwritten(held_names: tuple[str, ...], held: list[Any], names: Names | None) -> tuple[Any, ...]:
    if names is None or not (names.stored or names.collected):
        return tuple(held)
    pairs = zip(held_names, held, strict=False)
    return tuple([WRITTEN if names.is_written(name, each) else each for name, each in pairs])


def named(mapping: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([mapping.get(name, MISSING) for name in names])


def items_of(mapping: Any) -> tuple[Any, ...]:
    items = mapping.items()
    return *(key for key, _ in items), *(value for _, value in items)


def attributes_of(value: Any, *names: str) -> tuple[Any, ...]:
    return tuple([getattr(value, name, MISSING) for name in names])


def state_of(value: Any, slots: tuple[str, ...]) -> tuple[Any, ...]:
    held = getattr(value, "__dict__", {})
    return type(value), *attributes_of(value, *slots), *held, *held.values()


def bases_of(kind: type) -> tuple[type, ...]:
    return kind.__mro__


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def is_filled(cell: types.CellType) -> bool:
    return _contents(cell) is not MISSING


def pairs_of(looked: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Return the items of a mapping from its keys followed by its values."""
    half = len(looked) // 2
    return list(zip(looked[:half], looked[half:], strict=True))
