"""Check annotations at run time: with jaxtyping if they name a shape, otherwise only with beartype.

jaxtyping binds the arguments, remembers sizes, and checks before and after a call. Most annotations name no shape: for
these, beartype finds the same faults in a fraction of the time. A function inside another one is made at every call of
the latter. All functions of one such code share a check, because making it takes a millisecond.
"""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from types import CellType, CodeType, FunctionType
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

BY_BEARTYPE = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))
CHECKS: dict[CodeType, tuple[dict[str, Any], Callable | None]] = {}  # by code: annotations, and their check
FUNCTION = "the function that is checked"  # a keyword, which no function has


def check(package: str) -> None:
    """Check the annotations of every module of the package that is imported later."""
    jaxtyping.jaxtyped = _checked
    jaxtyping.install_import_hook(package, "beartype.beartype")


def _checked(*, typechecker: Callable, by_jaxtyping: Callable = jaxtyping.jaxtyped) -> Callable:
    def decorate(made: Any) -> Any:
        if not isinstance(made, FunctionType):
            return by_jaxtyping(made, typechecker=typechecker)
        if not made.__annotations__:
            return made
        if not made.__closure__:
            if _may_name_a_shape(made):
                return by_jaxtyping(made, typechecker=typechecker)
            return _either(made, BY_BEARTYPE(made))
        if made.__code__ not in CHECKS:
            CHECKS[made.__code__] = dict(made.__annotations__), _check_of(made)
        annotations, check = CHECKS[made.__code__]
        if check is None or annotations != made.__annotations__:
            return by_jaxtyping(made, typechecker=typechecker)
        return _either(made, partial(check, made))

    return decorate


def _either(made: FunctionType, looking: Callable) -> Callable:
    @wraps(made)
    def either(*arguments, **named):
        return (made if jaxtyping.config.jaxtyping_disable else looking)(*arguments, **named)

    return either


def _check_of(made: FunctionType) -> Callable | None:
    """Return a function that takes a function of this code and its arguments, or None if jaxtyping must check.

    Beartype keeps the function that it decorates, so this is one without contents.
    """
    takes_any_keyword = made.__code__.co_flags & inspect.CO_VARKEYWORDS
    if made.__defaults__ or made.__kwdefaults__ or takes_any_keyword or _may_name_a_shape(made):
        return None
    cells = tuple(CellType() for _ in made.__closure__ or ())
    empty = FunctionType(made.__code__, made.__globals__, made.__name__, None, cells)

    @wraps(empty)
    def call(*arguments, **named):
        return named.pop(FUNCTION)(*arguments, **named)

    call.__wrapped__.__annotations__ = call.__annotations__ = dict(made.__annotations__)
    checked = BY_BEARTYPE(call)
    return lambda function, *arguments, **named: checked(*arguments, **named, **{FUNCTION: function})


def _may_name_a_shape(function: FunctionType) -> bool:
    try:
        annotations = inspect.get_annotations(function, eval_str=True)
    except NameError:  # the annotation is defined below
        return True
    return any(map(_names_a_shape, annotations.values()))


def _names_a_shape(annotation: Any) -> bool:
    is_shape = isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray)
    return is_shape or any(map(_names_a_shape, get_args(annotation)))
