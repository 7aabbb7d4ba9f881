"""Types of the plain data in a checkpoint. Data of another type were not written by us."""

import math
from collections.abc import Callable
from typing import Any

from bilevel.loop.checkpoints.folder import Damaged
from bilevel.loop.status import Code

# A test of a value; [T], a list of T; (T, U), a list of a T and a U; {"a": T}, a dict with only these keys.
Type = Any


def check_types(values: dict[str, Any]) -> None:
    """Raise `Damaged` if a value under one of the names in `TYPES` has another type."""
    for name, type_ in TYPES.items():
        if name in values and not _fits(values[name], type_):
            raise Damaged(f"{name!r} in its contents has a wrong type or value")


def _fits(value: Any, type_: Type) -> bool:
    if isinstance(type_, list):
        return isinstance(value, list) and all(_fits(each, type_[0]) for each in value)
    if isinstance(type_, tuple):
        return isinstance(value, list) and len(value) == len(type_) and all(map(_fits, value, type_))
    if isinstance(type_, dict):
        return (
            isinstance(value, dict)
            and value.keys() == type_.keys()
            and all(_fits(value[name], type_[name]) for name in type_)
        )
    return type_(value)


def _or_none(type_: Type) -> Type:
    return lambda value: value is None or _fits(value, type_)


def _dict_of(type_: Type) -> Type:
    return lambda value: isinstance(value, dict) and all(_fits(each, type_) for each in value.values())


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


_is = lambda *types: lambda value: type(value) in types
_text = lambda value: isinstance(value, str)
_factor = lambda value: type(value) in (int, float) and math.isfinite(value) and value > 0
_seconds = lambda value: type(value) in (int, float) and math.isfinite(value) and value >= 0
_shapes = [([_whole(0)], _text)]
_real = _is(int, float)  # also NaN, as the mean of an array that overflows
_figures = [(_real, _real, _real, _real, _real)]
_word = _is(bool, int, float, str)
_part = lambda value: value is None or _word(value) or _fits(value, _figures)
_status = {
    "code": lambda value: _text(value) and value in {code.value for code in Code},
    "message": _text,
    "variable": _or_none(_text),
    "step": _or_none(_whole(0)),
}

TYPES: dict[str, Type] = {
    "steps": _whole(0),
    "thin": _or_none(_whole(1)),
    "halvings": [(_whole(0), _factor, _factor)],
    "seconds": _seconds,
    "status": _status,
    "order": _or_none([[_word]]),
    "fingerprint": [(_text, _text)],
    "made_by": lambda value: _dict_of(_text)(value) and "bilevel" in value,
    "tree": _is(dict),
    "arrays": _shapes,
    "files": _dict_of(_whole(0)),
    # Of the origin:
    "numbers": _dict_of(_part),
    "reads": _dict_of([(_text, _text, _part)]),
    "hidden": [_text],
    "loader": _is(bool),
    "start": _or_none(_figures),
    "data": _or_none(_figures),
    "seed": _or_none(_is(int)),
    "warmup": _or_none(_whole(0)),
    "stops": [_text],
    "outline": {"tree": lambda value: True, "shapes": _shapes},
}
