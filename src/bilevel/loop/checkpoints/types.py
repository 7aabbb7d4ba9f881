"""The types of what a checkpoint says besides its arrays. What has another type was not written by us."""

import math
from collections.abc import Callable
from typing import Any

from bilevel.loop.checkpoints.folder import Damaged
from bilevel.loop.status import Code

Test = Callable[[Any], bool]


def check_types(values: dict[str, Any]) -> None:
    """Raise `Damaged` if a value under one of the names in `TYPES` has another type."""
    for name, test in TYPES.items():
        if name in values and not test(values[name]):
            raise Damaged(f"{name!r} in its contents has a wrong type or value")


def _whole(least: int) -> Test:
    return lambda value: type(value) is int and value >= least


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _or_none(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _list_of(test: Test) -> Test:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _row_of(*tests: Test) -> Test:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(tests)
        and all(test(each) for test, each in zip(tests, value, strict=True))
    )


def _dict_of(test: Test) -> Test:
    return lambda value: isinstance(value, dict) and all(map(test, value.values()))


def _status(value: Any) -> bool:
    fields = {"code": _code, "message": _text, "variable": _or_none(_text), "step": _or_none(_whole(0))}
    return (
        isinstance(value, dict)
        and value.keys() == fields.keys()
        and all(test(value[name]) for name, test in fields.items())
    )


def _code(value: Any) -> bool:
    return isinstance(value, str) and value in {code.value for code in Code}


def _outline(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"tree", "shapes"} and _shapes(value["shapes"])


_shapes = _list_of(_row_of(_list_of(_whole(0)), _text))
_real = lambda value: type(value) in (int, float)  # also NaN, as of a mean that overflows
_figures = _list_of(_row_of(_real, _real, _real, _real))
_part = lambda value: value is None or type(value) in (bool, int, float, str) or _figures(value)
_factor = lambda value: _number(value) and value > 0

TYPES: dict[str, Test] = {
    "steps": _whole(0),
    "thin": _or_none(_whole(1)),
    "halvings": _list_of(_row_of(_whole(0), _factor, _factor)),
    "seconds": lambda value: _number(value) and value >= 0,
    "status": _status,
    "order": _or_none(_list_of(_list_of(lambda value: type(value) in (bool, int, float, str)))),
    "fingerprint": _list_of(_row_of(_text, _text)),
    "made_by": lambda value: _dict_of(_text)(value) and "bilevel" in value,
    "tree": lambda value: isinstance(value, dict),
    "arrays": _shapes,
    "files": _dict_of(_whole(0)),
    # of its origin
    "numbers": _dict_of(_part),
    "reads": _dict_of(_list_of(_row_of(_text, _text, _part))),
    "hidden": _list_of(_text),
    "loader": lambda value: type(value) is bool,
    "start": _or_none(_figures),
    "data": _or_none(_figures),
    "seed": _or_none(lambda value: type(value) is int),
    "warmup": _or_none(_whole(0)),
    "stops": _list_of(_text),
    "outline": _outline,
}
