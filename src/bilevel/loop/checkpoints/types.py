"""Types of the plain data in a checkpoint. Data of another type were not written by us."""

import math
from collections.abc import Callable
from typing import Any

from bilevel.loop.checkpoints.folder import Damaged
from bilevel.loop.status import Code

# A test of a value; [T], a list of T; (T, U), a list of a T and a U; {"a": T}, a dict with only these keys.
Type = Any


def check_types(values: Any, types: dict[str, Type]) -> None:
    """Raise `Damaged` unless the values are a dict with all these names, and have these types."""
    if not isinstance(values, dict) or not values.keys() >= types.keys():
        raise Damaged("its contents do not belong to a checkpoint")
    for name, type_ in types.items():
        if not _fits(values[name], type_):
            raise Damaged(f"{name!r} in its contents has a wrong type or value")


def _fits(value: Any, type_: Type) -> bool:
    if isinstance(type_, list):
        return isinstance(value, list) and all(_fits(each, type_[0]) for each in value)
    if isinstance(type_, tuple):
        return isinstance(value, list) and len(value) == len(type_) and all(map(_fits, value, type_))
    if isinstance(type_, dict):
        same = isinstance(value, dict) and value.keys() == type_.keys()
        return same and all(_fits(value[name], type_[name]) for name in type_)
    return type_(value)


def _or_none(type_: Type) -> Type:
    return lambda value: value is None or _fits(value, type_)


def _dict_of(type_: Type) -> Type:
    return lambda value: isinstance(value, dict) and all(_fits(each, type_) for each in value.values())


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


_any = lambda value: True
_is = lambda *types: lambda value: type(value) in types
_text = lambda value: isinstance(value, str)
_seconds = lambda value: type(value) in (int, float) and math.isfinite(value) and value >= 0
_factor = lambda value: _seconds(value) and value > 0
_shapes = [([_whole(0)], _text)]
_real = _is(int, float)  # also NaN, as the mean of an array that overflows
_figures = [(_real, _real, _real, _real)]
_word = _is(bool, int, float, str)
_part = lambda value: value is None or _word(value) or _fits(value, _figures)

CONTENTS: dict[str, Type] = {
    "steps": _whole(0),
    "thin": _or_none(_whole(1)),
    "halvings": [(_whole(0), _factor, _factor)],
    "seconds": _seconds,
    "status": {
        "code": lambda value: _text(value) and value in {code.value for code in Code},
        "message": _text,
        "variable": _or_none(_text),
        "step": _or_none(_whole(0)),
    },
    "order": _or_none([[_word]]),  # the keys of the samplers of data in memory; None for a loader
    "fingerprint": [(_text, _text)],
    "made_by": lambda value: _dict_of(_text)(value) and "bilevel" in value,
    "tree": _is(dict),
    "arrays": _shapes,
    "files": _dict_of(_whole(0)),
}

ORIGIN: dict[str, Type] = {  # `None`: unknown
    "numbers": _dict_of(_part),  # the solver's step sizes and other numbers
    "reads": _dict_of([(_text, _text, _part)]),  # what each function reads, as (path, kind, figure)
    "hidden": [_text],  # values without a figure that functions read
    "loader": _is(bool),
    "start": _or_none(_figures),  # of x0, y0 and the model state
    "data": _or_none(_figures),  # of data in memory, or of a loader's first batch
    "seed": _or_none(_is(int)),
    "warmup": _or_none(_whole(0)),
    "stops": [_text],  # hooks and policies that may end the run, which a resumed run may change
    "outline": {"tree": _any, "shapes": _shapes},  # of x0, y0 and the model state
}
