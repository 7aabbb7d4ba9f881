"""Annotations are checked at run time: by jaxtyping where they name a shape, else by beartype alone.

jaxtyping binds the arguments, remembers sizes and checks twice, before a call and after it. For the many functions
whose annotations name no shape, beartype finds the same faults in a fraction of the time.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

BY_BEARTYPE = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def check(package: str) -> None:
    """In all that is imported of it from here on."""
    jaxtyping.jaxtyped = _checked
    jaxtyping.install_import_hook(package, "beartype.beartype")


def _checked(*, typechecker: Callable, by_jaxtyping: Callable = jaxtyping.jaxtyped) -> Callable:
    def decorate(made: Any) -> Any:
        # beartype would keep what a function closes over.
        if not isinstance(made, FunctionType) or made.__closure__ or _may_name_a_shape(made):
            return by_jaxtyping(made, typechecker=typechecker)
        looking = BY_BEARTYPE(made)

        @wraps(made)
        def either(*arguments, **named):
            return (made if jaxtyping.config.jaxtyping_disable else looking)(*arguments, **named)

        return made if looking is made else either  # nothing is annotated

    return decorate


def _may_name_a_shape(function: FunctionType) -> bool:
    try:
        annotations = inspect.get_annotations(function, eval_str=True)
    except NameError:  # of something that is defined below
        return True
    return any(map(_names_a_shape, annotations.values()))


def _names_a_shape(annotation: Any) -> bool:
    is_shape = isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray)
    return is_shape or any(map(_names_a_shape, get_args(annotation)))
